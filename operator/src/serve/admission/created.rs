//! VMs that this replica has admitted, by namespace, as a metric.
//!
//! Not here: whether the API server has stored them. Another webhook may refuse them afterwards.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cluster::review::{Answer, Request};
use serve::metrics::{Kind, Page};

/// VMs since the start of the process.
#[derive(Debug, Default)]
pub(super) struct Created(Mutex<BTreeMap<String, u64>>);

impl Created {
    /// Counts a new VM.
    pub(super) fn count(&self, request: &Request, answer: &Answer) {
        if request.operation == "CREATE" && request.dry_run != Some(true) && answer.is_allowed() {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *all.entry(request.namespace.clone()).or_default() += 1;
        }
    }

    /// Adds the metric.
    pub(super) fn write(&self, page: &mut Page) {
        let name = "kubevirt_vm_created_by_pod_total";
        let help = "The total number of VMs created by namespace and virt-api pod, since install.";
        page.begin(name, Kind::Counter, help);
        for (namespace, count) in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            page.sample(name, &[("namespace", namespace)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_machines_that_are_admitted_are_counted() {
        let created = Created::default();
        let request = |operation: &str, namespace: &str, dry_run: Option<bool>| Request {
            operation: operation.to_owned(),
            namespace: namespace.to_owned(),
            dry_run,
            ..Request::default()
        };
        let refused = Answer::refuse(422, "Invalid", "no");
        for (request, answer) in [
            (request("CREATE", "a", None), Answer::allow()),
            (request("CREATE", "a", Some(false)), Answer::allow().warn("odd")),
            (request("CREATE", "b", None), Answer::allow()),
            (request("CREATE", "a", Some(true)), Answer::allow()),
            (request("UPDATE", "a", None), Answer::allow()),
            (request("CREATE", "c", None), refused),
        ] {
            created.count(&request, &answer);
        }
        let mut page = Page::default();
        created.write(&mut page);
        let text = page.text();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let name = "kubevirt_vm_created_by_pod_total";
        assert_eq!(samples, [format!("{name}{{namespace=\"a\"}} 2"), format!("{name}{{namespace=\"b\"}} 1")]);
    }
}
