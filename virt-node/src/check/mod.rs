//! `virt-node check`: the features that this machine has for guests, each tried, and a remedy for each missing one.
//!
//! The machine is left as it was: a guest of one sector runs for a moment, files are made in a folder that goes away,
//! network devices in a namespace that does.
//!
//! Not here: what a document asks for ([`virt::validate`]).

mod accounts;
mod kvm;
mod network;
pub(crate) mod programs;
mod storage;

use std::path::Path;

use serde_json::json;

/// Whether a missing feature matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No guest runs without it.
    Required,
    /// Guests run without it, less well or with fewer features.
    Optional,
}

/// A feature that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Its name.
    pub name: &'static str,
    /// The purpose of the feature.
    pub purpose: &'static str,
    /// Whether it matters.
    pub need: Need,
    /// The detected state, or the reason why it is missing.
    pub found: Result<String, Missing>,
}

/// Why a feature is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The cause of the failure.
    pub reason: String,
    /// The remedy.
    pub advice: String,
}

impl Missing {
    fn new(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { reason: reason.into(), advice: advice.into() }
    }
}

/// Everything that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report(pub Vec<Tried>);

/// Tries everything; `state` is where guests' state will be.
pub fn check(state: &Path) -> Report {
    let mut tried = vec![programs::qemu(), kvm::kvm(), programs::libvirt()];
    tried.extend([programs::ovmf(), programs::swtpm(), accounts::ids()]);
    tried.extend(storage::all(state));
    tried.extend(network::all());
    Report(tried)
}

/// The group that may use /dev/kvm, if it has one: VMs' users are in it. `None`: all users may, or root alone.
pub(crate) fn kvm_group() -> Option<u32> {
    kvm::group()
}

impl Report {
    /// Whether guests can run here.
    pub fn is_good(&self) -> bool {
        self.0.iter().all(|one| one.found.is_ok() || one.need == Need::Optional)
    }

    /// For people: a line for each feature, and one with the remedy below a missing one.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Tried { name, purpose, need, found } in &self.0 {
            match (found, need) {
                (Ok(found), _) => text.push_str(&format!("ok       {name:<15} {purpose}: {found}\n")),
                (Err(Missing { reason, advice }), need) => {
                    let word = match need {
                        Need::Required => "MISSING",
                        Need::Optional => "missing",
                    };
                    text.push_str(&format!("{word:<8} {name:<15} {purpose}: {reason}\n"));
                    text.push_str(&format!("{:<8} {:<15} → {advice}\n", "", ""));
                }
            }
        }
        text
    }

    /// For programs: `{good, checks: [{name, purpose, required, offered, found | reason, advice}]}`.
    pub fn json(&self) -> String {
        let one = |one: &Tried| {
            let (found, reason, advice) = match &one.found {
                Ok(found) => (Some(found), None, None),
                Err(missing) => (None, Some(&missing.reason), Some(&missing.advice)),
            };
            json!({
                "name": one.name,
                "purpose": one.purpose,
                "required": one.need == Need::Required,
                "offered": one.found.is_ok(),
                "found": found,
                "reason": reason,
                "advice": advice,
            })
        };
        let report = json!({"good": self.is_good(), "checks": self.0.iter().map(one).collect::<Vec<_>>()});
        format!("{report:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(name: &'static str, need: Need, missing: bool) -> Tried {
        let found =
            if missing { Err(Missing::new("is gone", "bring it back")) } else { Ok("is there".to_owned()) };
        Tried { name, purpose: "everything", need, found }
    }

    #[test]
    fn only_what_is_required_makes_a_machine_bad() {
        let optional = Report(vec![tried("a", Need::Required, false), tried("b", Need::Optional, true)]);
        assert!(optional.is_good());
        let text = optional.text();
        assert!(
            text.contains("ok       a") && text.contains("missing  b") && text.contains("→ bring it back")
        );
        let required = Report(vec![tried("a", Need::Required, true)]);
        assert!(!required.is_good());
        assert!(required.text().starts_with("MISSING  a"));
        let json: serde_json::Value = serde_json::from_str(&required.json()).unwrap();
        assert_eq!(json["good"], false);
        assert_eq!(json["checks"][0]["advice"], "bring it back");
    }
}
