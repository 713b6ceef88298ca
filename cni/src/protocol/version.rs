//! The supported versions of the specification, and the features of each.

/// A version of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    /// All, oldest first.
    pub(crate) const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The newest.
    pub(crate) const NEWEST: Self = Self::V1_1_0;

    /// The version of exactly this name; a missing one means 0.1.0.
    pub(crate) fn named(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("") => Some(Self::V0_1_0),
            Some(name) => Self::ALL.into_iter().find(|version| version.as_str() == name),
        }
    }

    /// As it stands in a document.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}
