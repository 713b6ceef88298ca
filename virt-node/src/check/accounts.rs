//! Users that VMs run as: a range of numbers that must be ferrovirt's alone.

use super::{Missing, Need, Tried};
use crate::daemon::ids::{FIRST, LAST, Taken, taken};

/// Whether other accounts of the machine have numbers of the range.
pub(super) fn ids() -> Tried {
    let found = judge(&taken());
    Tried { name: "users", purpose: "a user of its own for each VM", need: Need::Optional, found }
}

fn judge(taken: &[Taken]) -> Result<String, Missing> {
    let (first, last) = (FIRST, LAST);
    if taken.is_empty() {
        return Ok(format!("{first} to {last}, no other account has one of them"));
    }
    let named: Vec<String> = taken.iter().map(|one| format!("{} has {}", one.account, one.id)).collect();
    Err(Missing::new(
        format!("the IDs {first} to {last} are for VMs, but {}", named.join(", ")),
        "give these accounts other numbers (usermod -u, groupmod -g); until then no VM runs under theirs",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_in_the_range_is_named_with_its_number() {
        assert!(judge(&[]).is_ok());
        let missing = judge(&[Taken { id: FIRST + 7, account: "user mysql".to_owned() }]).unwrap_err();
        assert!(missing.reason.contains("user mysql has 1900000007"), "{}", missing.reason);
        assert!(missing.advice.contains("no VM runs under"), "{}", missing.advice);
    }
}
