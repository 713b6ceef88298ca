//! Lists in pages. A token holds the last name of its page, so that entries created or deleted between two calls shift
//! nothing.

use crate::error::{Error, Kind, Result};
use crate::id::Id;

/// Prefix of the driver's tokens; any other token is rejected.
const PREFIX: &str = "after:";

/// Part of a sorted list: at most `most` names (0: all) after the one in `token`, and the token of the rest, empty when
/// there is none.
///
/// # Errors
/// [`Kind::Invalid`] when `most` is negative; [`Kind::Busy`], CSI's answer, when the token is not ours.
pub(crate) fn page(names: Vec<Id>, token: &str, most: i32) -> Result<(Vec<Id>, String)> {
    let most = usize::try_from(most)
        .map_err(|_| Error::new(Kind::Invalid, format!("max_entries is negative: {most}")))?;
    let after = match token {
        "" => None,
        token => Some(token.strip_prefix(PREFIX).and_then(Id::read).ok_or_else(|| {
            Error::new(Kind::Busy, "starting_token was not issued by this driver; list from the start")
        })?),
    };
    let mut rest: Vec<Id> =
        names.into_iter().filter(|name| after.as_ref().is_none_or(|after| name > after)).collect();
    if most == 0 || rest.len() <= most {
        return Ok((rest, String::new()));
    }
    rest.truncate(most);
    let next = rest.last().map(|last| format!("{PREFIX}{last}")).unwrap_or_default();
    Ok((rest, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<Id> {
        names.iter().map(|name| Id::read(name).unwrap()).collect()
    }

    #[test]
    fn pages_are_complete_whatever_their_length() {
        let all = names(&["a", "b", "c", "d", "e"]);
        for most in 1..7 {
            let mut seen = Vec::new();
            let mut token = String::new();
            loop {
                let (part, next) = page(all.clone(), &token, most).unwrap();
                assert!(part.len() <= usize::try_from(most).unwrap());
                seen.extend(part);
                if next.is_empty() {
                    break;
                }
                token = next;
            }
            assert_eq!(seen, all, "{most}");
        }
        assert_eq!(page(all.clone(), "", 0).unwrap(), (all, String::new()));
    }

    #[test]
    fn entries_that_come_and_go_shift_nothing() {
        let (_, token) = page(names(&["a", "b", "c"]), "", 2).unwrap();
        assert_eq!(page(names(&["c", "d"]), &token, 0).unwrap().0, names(&["c", "d"]));
        assert_eq!(page(names(&[]), &token, 5).unwrap(), (names(&[]), String::new()));
    }

    #[test]
    fn foreign_tokens_are_refused() {
        for token in ["invalid-token", "5", "after:", "after:../x"] {
            assert_eq!(page(names(&["a"]), token, 0).unwrap_err().kind(), Kind::Busy, "{token}");
        }
        assert_eq!(page(names(&["a"]), "", -1).unwrap_err().kind(), Kind::Invalid);
    }
}
