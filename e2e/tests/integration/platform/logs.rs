//! Levels of the logs of operator and agent follow `HyperConverged` while their pods run.

use serde_json::{Value, json};

use crate::platform::hyperconverged::{OBJECT, alone};
use crate::platform::machines::create;
use crate::platform::place::PLACE;
use crate::platform::streams::{Streams, agent};

const PLATFORM: &str = operator::defaults::NAMESPACE;
const NAMESPACE: &str = "log-levels";
const AGENT: &str = "daemonset/virt-handler";
const OPERATOR: &str = "deployment/ferrovirt-operator";

/// Waits until the log of a program has a line with all of these words.
#[track_caller]
fn until_logged(program: &str, words: &[&str]) {
    PLACE.until(NAMESPACE, &format!("{program} logs {words:?}"), || {
        let log = PLACE.kubectl(&["-n", PLATFORM, "logs", program, "--tail=-1"]).ok()?;
        log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    });
}

fn set(levels: &Value) {
    let patch = json!({"spec": {"deployment": {"logVerbosityConfig": {"kubevirt": levels}}}}).to_string();
    let object = OBJECT.replacen("hyperconverged.", "hyperconvergeds.v1.", 1);
    PLACE.kubectl(&["-n", PLATFORM, "patch", &object, "--type=merge", "-p", &patch]).unwrap();
}

#[test]
fn levels_of_logs_follow_hyperconverged_without_a_restart() {
    let (_alone, _streams) = (alone(), Streams::follow());
    PLACE.namespace(NAMESPACE);
    let started = |pod: Value| {
        (pod["metadata"]["uid"].clone(), pod["status"]["containerStatuses"][0]["restartCount"].clone())
    };
    let before = started(agent());
    set(&json!({"virtHandler": 3, "virtAPI": 4, "nodeVerbosity": {"node1": 5}}));
    until_logged(AGENT, &["the level of the log is changed", "Some(5)"]);
    until_logged(OPERATOR, &["levels of the log are changed", "operator::serve", "4"]);
    // A line for developers only.
    let _volume = create(NAMESPACE, "vm", "Always", 0);
    PLACE.until_status(NAMESPACE, "vm", "Running");
    until_logged(AGENT, &["DEBUG", "the network is wired"]);
    set(&Value::Null);
    until_logged(AGENT, &["the level of the log is changed", "None"]);
    until_logged(OPERATOR, &["levels of the log are changed", "[]"]);
    assert_eq!(started(agent()), before);
    PLACE.remove_namespace(NAMESPACE);
}
