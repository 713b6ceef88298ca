//! `CNI_ARGS`: pairs `KEY=VALUE` separated by semicolons. Keys are case-sensitive; an unknown key is an error unless
//! `IgnoreUnknown` is set.

use crate::error::{Error, Kind};

/// The pairs of `CNI_ARGS`, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments(Vec<(String, String)>);

impl Arguments {
    /// Reads the variable's value; an empty one holds no pairs.
    ///
    /// # Errors
    /// [`Kind::Environment`] when a part is not a pair.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let mut pairs = Vec::new();
        for pair in text.split(';').filter(|_| !text.is_empty()) {
            match pair.split_once('=') {
                Some((key, value)) if !value.contains('=') => pairs.push((key.to_owned(), value.to_owned())),
                Some(_) | None => {
                    let pair = pair.escape_debug();
                    return Err(Error::new(
                        Kind::Environment,
                        format!("CNI_ARGS: \"{pair}\" is not KEY=VALUE"),
                    ));
                }
            }
        }
        Ok(Self(pairs))
    }

    /// The last value of `key`, unless it is empty.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Refuses keys other than `known` and `IgnoreUnknown`, unless the latter is true.
    ///
    /// # Errors
    /// [`Kind::Environment`] naming the unknown pairs.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Error> {
        let mut ignore = false;
        for (_, value) in self.0.iter().filter(|(key, _)| key == "IgnoreUnknown") {
            ignore = match value.to_ascii_lowercase().as_str() {
                "1" | "true" => true,
                "0" | "false" => false,
                other => {
                    let other = other.escape_debug();
                    let message = format!("CNI_ARGS: IgnoreUnknown must be true or false, not \"{other}\"");
                    return Err(Error::new(Kind::Environment, message));
                }
            };
        }
        let unknown: Vec<String> = self
            .0
            .iter()
            .filter(|(key, _)| key != "IgnoreUnknown" && !known.contains(&key.as_str()))
            .map(|(key, _)| key.escape_debug().to_string())
            .collect();
        if ignore || unknown.is_empty() {
            return Ok(());
        }
        let message =
            format!("CNI_ARGS: {} not known; set IgnoreUnknown=true to allow it", unknown.join(", "));
        Err(Error::new(Kind::Environment, message))
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    #[test]
    fn pairs_and_unknown_keys() {
        let arguments = Arguments::parse("IgnoreUnknown=1;K8S_POD_NAME=a;MAC=02:00:00:00:00:01").unwrap();
        assert_eq!(arguments.get("MAC"), Some("02:00:00:00:00:01"));
        assert_eq!(arguments.get("mac"), None);
        arguments.only(&["MAC"]).unwrap();
        assert!(Arguments::parse("K8S_POD_NAME=a").unwrap().only(&["MAC"]).is_err());
        assert!(Arguments::parse("IgnoreUnknown=maybe").unwrap().only(&[]).is_err());
        Arguments::parse("").unwrap().only(&[]).unwrap();
    }

    #[test]
    fn rejects_malformed_pairs() {
        for text in ["MAC", ";", "a=b;", "a=b=c", "=;x"] {
            assert!(Arguments::parse(text).is_err(), "{text}");
        }
    }
}
