//! Waiting for a state of a cluster; when it does not come, the text of the failure describes the cluster.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Cluster, storage};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(50);
/// How long any state may take.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Commands of kubectl that describe a cluster. Those about a part that is not installed fail, which the text shows.
const SHOWN: [&[&str]; 9] = [
    &["get", "events", "-A", "--sort-by=.lastTimestamp"],
    &["get", "pods,pvc,pv,services", "-A", "-o", "wide"],
    &["get", "pods", "-A", "-o", "jsonpath={.items[*].status.containerStatuses[*].lastState.terminated}"],
    &["get", "datavolumes", "-A", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status}{\"\\n\"}{end}"],
    &[
        "-n",
        storage::NAMESPACE,
        "logs",
        "daemonset/hostpath-provisioner-csi",
        "--all-containers",
        "--tail=30",
    ],
    &["-n", "kubevirt-hyperconverged", "logs", "deployment/cdi-uploadproxy", "--tail=30"],
    &["get", "volumesnapshots,volumesnapshotcontents", "-A", "-o", "yaml"],
    &["-n", "kube-system", "logs", "deployment/snapshot-controller", "--tail=40"],
    &["-n", "kubevirt-hyperconverged", "logs", "-l", "app=ferrovirt-operator", "--prefix", "--tail=60"],
];

/// The time limit that a test asserts for a bar of an acceptance table: the bar with FERROVIRT_SOAK=1, which runs one program
/// at a time; else ten times the bar, because `make test` runs several programs at a time.
pub fn bar(full: Duration) -> Duration {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { full } else { full * 10 }
}

impl Cluster {
    /// Asks until there is an answer.
    ///
    /// # Panics
    /// When there is none after three minutes; the message describes the cluster.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(answer) = answer() {
                return answer;
            }
            assert!(Instant::now() < deadline, "not in time: {what}\n{}", self.described());
            thread::sleep(PAUSE);
        }
    }

    /// Events, pods, volumes and logs, as kubectl prints them.
    pub fn described(&self) -> String {
        let mut text = String::new();
        for words in SHOWN {
            match self.kubectl().args(words).output() {
                Ok(said) => {
                    text.push_str(&String::from_utf8_lossy(&said.stdout));
                    text.push_str(&String::from_utf8_lossy(&said.stderr));
                }
                Err(error) => text.push_str(&error.to_string()),
            }
        }
        text
    }
}
