//! Requests as we understand them: wire types of [`csi`] in, checked values out. Limits are CSI's: strings of 128
//! bytes, maps of 4 KiB. Not here: what is done about a request.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Kind, Result};
use crate::id::{ID_MAX, Id};
use csi::volume_capability::{AccessType, access_mode};

/// Most bytes of a map's keys and values together, and of a list's strings.
const MAP_MAX: usize = 4096;
/// Most volumes of a group.
const MEMBERS_MAX: usize = 256;
/// Smallest and largest sector of a block volume.
const SECTORS: [u32; 2] = [512, 4096];

/// StorageClass and snapshot class: the pool.
pub(crate) const POOL: &str = "storagePool";
/// StorageClass: bytes of a block volume's sector.
pub(crate) const SECTOR: &str = "blockSize";
/// StorageClass: `true` allows copying where blocks cannot be shared.
pub(crate) const COPY: &str = "copy";
/// Inline volumes: how much they may hold, a Kubernetes quantity.
pub(crate) const INLINE_SIZE: &str = "size";
/// VolumeAttributesClass: `thin` or `thick`.
pub(crate) const ALLOCATION: &str = "allocation";
/// Prefix of the parameters that sidecars add.
const SIDECARS: &str = "csi.storage.k8s.io/";
/// Set by the kubelet for inline volumes.
pub(crate) const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// How a volume is to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    pub(crate) access: Access,
    pub(crate) mode: Mode,
}

/// Form in which a volume is offered to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A block device.
    Block,
    /// A folder.
    Mount(MountOptions),
}

/// How a folder is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// The filesystem asked for; it matters only where one is made.
    pub(crate) filesystem: String,
    /// MOUNT_ATTR_* to set.
    pub(crate) set: u64,
    /// MOUNT_ATTR_* to clear.
    pub(crate) clear: u64,
    /// Group that may write.
    pub(crate) group: Option<u32>,
}

/// Access mode of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Any number of writers, on several nodes.
    ManyNodes,
    /// Any number of writers on one node.
    Many,
    /// As many as like, all of them reading.
    ManyReaders,
    /// One: a second place is refused.
    One,
}

/// How large a volume is to be, in bytes; 0 is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) required: u64,
    pub(crate) limit: u64,
}

/// Where a new volume's content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Volume(Id),
    Snapshot(Id),
}

/// The driver's parameters of a StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Pool's name; `None`: the legacy pool.
    pub(crate) pool: Option<String>,
    /// Bytes of a block volume's sector.
    pub(crate) sector: u32,
    /// Whether copying is allowed.
    pub(crate) copy: bool,
}

/// Mutable parameters: properties that can be changed while the volume exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// `None`: as it is.
    pub(crate) allocation: Option<Allocation>,
}

/// When a volume that is a file gets its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocation {
    /// When they are written.
    Thin,
    /// Ahead, and none of them shared with another volume or a snapshot of before: writes find room.
    Thick,
}

impl Attributes {
    /// Reads mutable parameters. Unlike a StorageClass's they are all ours, but for those that sidecars add.
    pub(crate) fn read(map: &HashMap<String, String>) -> Result<Self> {
        bounded("mutable_parameters", map)?;
        let mut attributes = Self::default();
        for (key, value) in map.iter().filter(|(key, _)| !key.starts_with(SIDECARS)) {
            match (key.as_str(), value.as_str()) {
                (ALLOCATION, "thin") => attributes.allocation = Some(Allocation::Thin),
                (ALLOCATION, "thick") => attributes.allocation = Some(Allocation::Thick),
                (ALLOCATION, other) => {
                    return Err(invalid(format!("{ALLOCATION} is thin or thick, not {other:?}")));
                }
                (other, _) => {
                    return Err(invalid(format!("{other:?} cannot be modified, only {ALLOCATION}")));
                }
            }
        }
        Ok(attributes)
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, message)
}

/// A map within CSI's limit.
pub(crate) fn bounded(field: &str, map: &HashMap<String, String>) -> Result<()> {
    let bytes: usize = map.iter().map(|(key, value)| key.len().saturating_add(value.len())).sum();
    if bytes > MAP_MAX {
        return Err(invalid(format!("{field} has {bytes} bytes, {MAP_MAX} are allowed")));
    }
    Ok(())
}

impl Parameters {
    /// Reads a StorageClass's parameters. Keys of other components are ignored.
    pub(crate) fn read(map: &HashMap<String, String>) -> Result<Self> {
        bounded("parameters", map)?;
        let get = |key: &str| map.get(key).map(String::as_str);
        let sector = match get(SECTOR) {
            None => SECTORS[0],
            Some(text) => text
                .parse()
                .ok()
                .filter(|sector| SECTORS.contains(sector))
                .ok_or_else(|| invalid(format!("{SECTOR} is 512 or 4096, not {text:?}")))?,
        };
        let copy = match get(COPY) {
            None | Some("false") => false,
            Some("true") => true,
            Some(text) => return Err(invalid(format!("{COPY} is true or false, not {text:?}"))),
        };
        Ok(Self { pool: get(POOL).filter(|name| !name.is_empty()).map(str::to_owned), sector, copy })
    }
}

impl TryFrom<Option<csi::CapacityRange>> for Range {
    type Error = Error;

    fn try_from(wire: Option<csi::CapacityRange>) -> Result<Self> {
        let Some(wire) = wire else { return Ok(Self::default()) };
        let bytes = |field: &str, value: i64| {
            u64::try_from(value).map_err(|_| invalid(format!("{field} is negative: {value}")))
        };
        let range = Self {
            required: bytes("required_bytes", wire.required_bytes)?,
            limit: bytes("limit_bytes", wire.limit_bytes)?,
        };
        if range.limit != 0 && range.required > range.limit {
            return Err(Error::new(
                Kind::OutOfRange,
                format!("required_bytes {} is above limit_bytes {}", range.required, range.limit),
            ));
        }
        Ok(range)
    }
}

impl TryFrom<csi::VolumeContentSource> for Source {
    type Error = Error;

    fn try_from(wire: csi::VolumeContentSource) -> Result<Self> {
        use csi::volume_content_source::Type;
        match wire.r#type {
            Some(Type::Volume(volume)) => Id::parse("source volume_id", &volume.volume_id).map(Self::Volume),
            Some(Type::Snapshot(snapshot)) => {
                Id::parse("source snapshot_id", &snapshot.snapshot_id).map(Self::Snapshot)
            }
            None => Err(invalid("volume_content_source names neither a volume nor a snapshot")),
        }
    }
}

impl TryFrom<csi::VolumeCapability> for Capability {
    type Error = Error;

    fn try_from(wire: csi::VolumeCapability) -> Result<Self> {
        let mode = wire.access_mode.ok_or_else(|| invalid("the volume capability has no access mode"))?;
        let access = match wire.access_type {
            None => return Err(invalid("the volume capability has neither block nor mount access")),
            Some(AccessType::Block(_)) => Access::Block,
            Some(AccessType::Mount(mount)) => Access::Mount(mount.try_into()?),
        };
        let mode = access_mode::Mode::try_from(mode.mode)
            .map_err(|_| invalid(format!("there is no access mode {}", mode.mode)))?;
        Ok(Self { access, mode: mode.try_into()? })
    }
}

impl TryFrom<access_mode::Mode> for Mode {
    type Error = Error;

    fn try_from(wire: access_mode::Mode) -> Result<Self> {
        use access_mode::Mode as Wire;
        match wire {
            Wire::Unknown => Err(invalid("the access mode is unknown")),
            Wire::SingleNodeWriter | Wire::SingleNodeMultiWriter => Ok(Self::Many),
            Wire::MultiNodeSingleWriter | Wire::MultiNodeMultiWriter => Ok(Self::ManyNodes),
            Wire::SingleNodeReaderOnly | Wire::MultiNodeReaderOnly => Ok(Self::ManyReaders),
            Wire::SingleNodeSingleWriter => Ok(Self::One),
        }
    }
}

impl TryFrom<csi::volume_capability::MountVolume> for MountOptions {
    type Error = Error;

    fn try_from(wire: csi::volume_capability::MountVolume) -> Result<Self> {
        if wire.fs_type.len() > ID_MAX {
            return Err(invalid("fs_type is longer than 128 bytes"));
        }
        if wire.mount_flags.iter().map(String::len).sum::<usize>() > MAP_MAX {
            return Err(invalid("mount_flags have more than 4 KiB"));
        }
        let group =
            match wire.volume_mount_group.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|_| {
                    invalid(format!("volume_mount_group {text:?} is not the number of a group"))
                })?),
            };
        let mut options = Self { filesystem: wire.fs_type, group, ..Self::default() };
        for flag in wire.mount_flags.iter().flat_map(|flags| flags.split(',')) {
            options.apply(flag)?;
        }
        Ok(options)
    }
}

impl MountOptions {
    /// Applies one option; a later one overrides an earlier one.
    fn apply(&mut self, flag: &str) -> Result<()> {
        let (attribute, on) = match flag {
            "" | "defaults" | "bind" | "rw" => return Ok(()),
            "ro" => (libc::MOUNT_ATTR_RDONLY, true),
            "nosuid" => (libc::MOUNT_ATTR_NOSUID, true),
            "suid" => (libc::MOUNT_ATTR_NOSUID, false),
            "nodev" => (libc::MOUNT_ATTR_NODEV, true),
            "dev" => (libc::MOUNT_ATTR_NODEV, false),
            "noexec" => (libc::MOUNT_ATTR_NOEXEC, true),
            "exec" => (libc::MOUNT_ATTR_NOEXEC, false),
            "nosymfollow" => (libc::MOUNT_ATTR_NOSYMFOLLOW, true),
            "nodiratime" => (libc::MOUNT_ATTR_NODIRATIME, true),
            "diratime" => (libc::MOUNT_ATTR_NODIRATIME, false),
            "noatime" | "relatime" | "strictatime" => {
                // One field of several bits: cleared as a whole and then set.
                self.clear |= libc::MOUNT_ATTR__ATIME;
                self.set &= !libc::MOUNT_ATTR__ATIME;
                self.set |= match flag {
                    "noatime" => libc::MOUNT_ATTR_NOATIME,
                    "strictatime" => libc::MOUNT_ATTR_STRICTATIME,
                    _ => libc::MOUNT_ATTR_RELATIME,
                };
                return Ok(());
            }
            _ => return Err(invalid(format!("mount option {flag:?} is not supported"))),
        };
        if on {
            self.set |= attribute;
            self.clear &= !attribute;
        } else {
            self.clear |= attribute;
            self.set &= !attribute;
        }
        Ok(())
    }
}

/// The volumes of a group.
///
/// # Errors
/// [`Kind::Invalid`] when there is none, too many, one twice, or one that cannot be a volume.
pub(crate) fn members(wire: &[String]) -> Result<Vec<Id>> {
    if wire.is_empty() || wire.len() > MEMBERS_MAX {
        let count = wire.len();
        return Err(invalid(format!(
            "source_volume_ids has {count} volumes; 1 to {MEMBERS_MAX} are allowed"
        )));
    }
    let ids = wire.iter().map(|text| Id::parse("source_volume_ids", text)).collect::<Result<Vec<_>>>()?;
    let different: HashSet<&Id> = ids.iter().collect();
    if different.len() != ids.len() {
        return Err(invalid("source_volume_ids has a volume twice"));
    }
    Ok(ids)
}

/// All of a request's capabilities.
///
/// # Errors
/// [`Kind::Invalid`] when there is none, one is invalid, or they mix block and mount access.
pub(crate) fn capabilities(wire: Vec<csi::VolumeCapability>) -> Result<Vec<Capability>> {
    if wire.is_empty() {
        return Err(invalid("volume_capabilities are missing"));
    }
    let read = wire.into_iter().map(Capability::try_from).collect::<Result<Vec<_>>>()?;
    let blocks = read.iter().filter(|capability| capability.access == Access::Block).count();
    if blocks != 0 && blocks != read.len() {
        return Err(invalid("a volume is block or mount, not both"));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(flags: &[&str], group: &str) -> Result<MountOptions> {
        MountOptions::try_from(csi::volume_capability::MountVolume {
            fs_type: "xfs".into(),
            mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            volume_mount_group: group.into(),
        })
    }

    #[test]
    fn mount_options_are_attributes() {
        let options = mount(&["ro", "nosuid,nodev", "noatime", "dev"], "107").unwrap();
        assert_eq!(options.set, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOATIME);
        assert_eq!(options.clear, libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR__ATIME);
        assert_eq!(options.group, Some(107));
        assert_eq!(mount(&["defaults", ""], "").unwrap().set, 0);
        for (flags, group) in
            [(&["context=x"][..], ""), (&["dax"], ""), (&[], "root"), (&[], "-1"), (&[], "4294967296")]
        {
            assert_eq!(mount(flags, group).unwrap_err().kind(), Kind::Invalid, "{flags:?} {group}");
        }
    }

    #[test]
    fn sizes_are_checked() {
        let range = |required_bytes, limit_bytes| {
            Range::try_from(Some(csi::CapacityRange { required_bytes, limit_bytes })).map_err(|e| e.kind())
        };
        assert_eq!(range(5, 0), Ok(Range { required: 5, limit: 0 }));
        assert_eq!(range(5, 5), Ok(Range { required: 5, limit: 5 }));
        assert_eq!(range(6, 5), Err(Kind::OutOfRange));
        assert_eq!(range(-1, 5), Err(Kind::Invalid));
        assert_eq!(range(0, i64::MIN), Err(Kind::Invalid));
        assert_eq!(Range::try_from(None).unwrap(), Range::default());
    }

    #[test]
    fn parameters_are_bounded_and_foreign_keys_left_alone() {
        let map =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let read =
            Parameters::read(&map(&[("storagePool", "fast"), ("overlayCSI", "true"), ("blockSize", "4096")]))
                .unwrap();
        assert_eq!(read, Parameters { pool: Some("fast".into()), sector: 4096, copy: false });
        assert_eq!(Parameters::read(&map(&[])).unwrap().pool, None);
        let long = "x".repeat(4090);
        for bad in [[("blockSize", "1024")], [("copy", "yes")], [("x", "y")]] {
            let mut bad: HashMap<String, String> = map(&bad);
            if bad.contains_key("x") {
                bad.insert("longer".into(), long.clone());
            }
            assert_eq!(Parameters::read(&bad).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[test]
    fn a_group_has_some_volumes_once() {
        let read = |ids: &[&str]| members(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&["b", "a"]).unwrap().len(), 2);
        for bad in [&[][..], &["a", "a"], &["a", "../b"], &["x"; 257]] {
            assert_eq!(read(bad).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[test]
    fn attributes_are_ours_or_refused() {
        let read = |pairs: &[(&str, &str)]| {
            let map = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Attributes::read(&map).map_err(|error| error.kind())
        };
        assert_eq!(read(&[]), Ok(Attributes { allocation: None }));
        let thick = Attributes { allocation: Some(Allocation::Thick) };
        assert_eq!(read(&[("allocation", "thick"), ("csi.storage.k8s.io/pv/name", "x")]), Ok(thick));
        assert_eq!(read(&[("allocation", "fat")]), Err(Kind::Invalid));
        assert_eq!(read(&[("allocation", "thin"), ("iops", "5")]), Err(Kind::Invalid));
    }

    #[test]
    fn block_and_mount_exclude_each_other() {
        let one = |access_type, mode| csi::VolumeCapability {
            access_type,
            access_mode: Some(csi::volume_capability::AccessMode { mode }),
        };
        let block = || Some(AccessType::Block(csi::volume_capability::BlockVolume {}));
        let mount = || Some(AccessType::Mount(csi::volume_capability::MountVolume::default()));
        assert_eq!(capabilities(vec![one(block(), 1), one(block(), 6)]).unwrap()[1].mode, Mode::One);
        assert_eq!(capabilities(vec![one(mount(), 5)]).unwrap()[0].mode, Mode::ManyNodes);
        for bad in [
            vec![],
            vec![one(block(), 1), one(mount(), 1)],
            vec![one(None, 1)],
            vec![one(mount(), 0)],
            vec![one(mount(), 99)],
            vec![csi::VolumeCapability { access_type: mount(), access_mode: None }],
        ] {
            assert_eq!(capabilities(bad).unwrap_err().kind(), Kind::Invalid);
        }
    }
}
