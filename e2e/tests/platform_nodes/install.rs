//! The platform applied again, removed and installed, several times.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use e2e::platform;

use crate::place::PLACE;

fn kubectl(arguments: &[&str]) -> String {
    PLACE.kubectl(arguments).unwrap()
}

/// Installed objects of all kinds that have the platform's label, each with its generation if `generations` is set.
fn installed(generations: bool) -> BTreeSet<String> {
    let kinds = kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let generation = if generations { " {.metadata.generation}" } else { "" };
    let template =
        format!("jsonpath={{range .items[*]}}{{.kind}}/{{.metadata.name}}{generation}{{\"\\n\"}}{{end}}");
    let label = "app.kubernetes.io/managed-by=ferrovirt";
    kubectl(&["get", &kinds.join(","), "-A", "-l", label, "-o", &template])
        .lines()
        .map(str::to_owned)
        .collect()
}

pub(crate) fn removed_without_a_trace() {
    let settings = platform::settings();
    println!("available after {:?}", PLACE.installed);
    let namespaces = || kubectl(&["get", "namespaces", "-o", "name"]);
    for round in 0..if std::env::var_os("FERROVIRT_SOAK").is_some() { 10 } else { 2 } {
        let before = installed(true);
        assert!(before.len() > 60, "{before:?}");
        let begun = Instant::now();
        platform::install(&PLACE.cluster, &settings).unwrap();
        let again = begun.elapsed();
        assert_eq!(installed(true), before, "applied again, it changes something");
        let removed = platform::uninstall(&PLACE.cluster, &settings).unwrap();
        assert_eq!(installed(false), BTreeSet::new());
        assert!(!namespaces().contains(&settings.namespace), "{}", namespaces());
        let took = platform::install(&PLACE.cluster, &settings).unwrap();
        println!("round {round}: applied again in {again:?}, removed in {removed:?}, available in {took:?}");
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}
