//! Whether the upload server of a claim is ready, by the claim's annotations. Pure. Not here: requests to the cluster,
//! waiting.

use std::collections::BTreeMap;

use api::upload::annotation::{CONTENT_TYPE, POD_PHASE, POD_READY, PRIME, TARGET};
use api::upload::token::Target;
use api::upload::{Way, archive_path};

/// The read part of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) annotations: BTreeMap<String, String>,
    /// The upload populator fills it: the server has another claim.
    pub(crate) populated: bool,
}

/// The next step of an upload to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Its server takes it.
    Go {
        /// The volume is filled with an archive's files.
        archive: bool,
    },
    /// Its server has this claim.
    Follow(Target),
    /// Look again in a moment.
    Wait(&'static str),
    /// It is not possible, and why.
    Refuse(String),
}

/// The next step for an upload to `target`, the name of `claim`.
pub(crate) fn step(target: &Target, claim: &Claim) -> Step {
    let name = target.name();
    let says = |key: &str| claim.annotations.get(key).map_or("", String::as_str);
    if says(POD_PHASE) == "Succeeded" {
        return Step::Refuse(format!(
            "rejecting Upload Request for PVC {name} that already finished uploading"
        ));
    }
    if claim.populated {
        return match says(PRIME) {
            "" => Step::Wait("its populator claim does not exist yet; see the events of the claim"),
            prime => match Target::new(target.namespace(), prime) {
                Some(prime) => Step::Follow(prime),
                None => Step::Refuse(format!(
                    "the annotation of PVC {name} for its populator claim is not the name of a claim"
                )),
            },
        };
    }
    if !claim.annotations.contains_key(TARGET) {
        return Step::Refuse(format!("PVC {name} is not an upload target: it has no annotation {TARGET}"));
    }
    let archive = match says(CONTENT_TYPE) {
        "" | "kubevirt" => false,
        "archive" => true,
        other => {
            let what =
                format!("rejecting upload request for PVC {name} - upload content-type {other} is invalid");
            return Step::Refuse(what);
        }
    };
    match says(POD_READY) {
        // As Go reads a bool.
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Step::Go { archive },
        _ => Step::Wait("its upload server is not ready yet; retry, and see its upload pod if this repeats"),
    }
}

/// The path at the server of what came by `path`.
pub(crate) fn server_path(path: &str, archive: bool) -> String {
    match Way::of_path(path) {
        Some(_) if archive => archive_path(path),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_of_a_claim_decide_the_step() {
        let target = Target::new("ns", "disk").unwrap();
        let ready = [(TARGET, ""), (POD_READY, "true")];
        let go = Step::Go { archive: false };
        type Case<'a> = (&'a [(&'a str, &'a str)], bool, Result<Step, &'a str>);
        let cases: [Case<'_>; 15] = [
            (&ready, false, Ok(go.clone())),
            (&[(TARGET, ""), (POD_READY, "1"), (CONTENT_TYPE, "kubevirt")], false, Ok(go.clone())),
            (
                &[(TARGET, ""), (POD_READY, "true"), (CONTENT_TYPE, "archive")],
                false,
                Ok(Step::Go { archive: true }),
            ),
            (
                &[(TARGET, ""), (POD_READY, "true"), (CONTENT_TYPE, "x")],
                false,
                Err("content-type x is invalid"),
            ),
            (&[(TARGET, ""), (POD_READY, "true"), (POD_PHASE, "Running")], false, Ok(go)),
            (&[(TARGET, ""), (POD_READY, "false")], false, Err("wait")),
            (&[(TARGET, "")], false, Err("wait")),
            (&[(POD_READY, "true")], false, Err("PVC disk is not an upload target")),
            (&[], false, Err("not an upload target")),
            (&[(TARGET, ""), (POD_READY, "true"), (POD_PHASE, "Succeeded")], false, Err("already finished")),
            (&[], true, Err("wait")),
            (&[(PRIME, "prime-1")], true, Ok(Step::Follow(Target::new("ns", "prime-1").unwrap()))),
            (&ready, true, Err("wait")),
            (&[(PRIME, "../x")], true, Err("not the name of a claim")),
            (&[(PRIME, "prime-1"), (POD_PHASE, "Succeeded")], true, Err("already finished")),
        ];
        for (annotations, populated, expected) in cases {
            let annotations = annotations.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
            let claim = Claim { annotations, populated };
            match (step(&target, &claim), expected) {
                (Step::Refuse(why), Err(words)) => assert!(why.contains(words), "{claim:?}: {why}"),
                (Step::Wait(_), Err(words)) => assert_eq!(words, "wait", "{claim:?}"),
                (found, expected) => assert_eq!(Ok(found), expected, "{claim:?}"),
            }
        }
    }

    #[test]
    fn archives_have_their_own_path() {
        for (path, archive, expected) in [
            ("/v1beta1/upload", false, "/v1beta1/upload"),
            ("/v1beta1/upload-form-async", false, "/v1beta1/upload-form-async"),
            ("/v1beta1/upload-async", true, "/v1beta1/upload-archive"),
            ("/v1alpha1/upload", true, "/v1alpha1/upload-archive"),
            ("/v1beta1/uploads/x", true, "/v1beta1/uploads/x"),
        ] {
            assert_eq!(server_path(path, archive), expected);
        }
    }
}
