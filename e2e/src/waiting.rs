//! Waiting for something in a cluster, and what a person would look at when it does not come.

use std::thread;
use std::time::{Duration, Instant};

use crate::Cluster;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(50);

impl Cluster {
    /// Asks until there is an answer.
    ///
    /// # Panics
    /// When there is none after `patience`; the message has what these commands of kubectl print.
    #[track_caller]
    pub fn until<T>(
        &self,
        what: &str,
        patience: Duration,
        commands: &[&[&str]],
        mut answer: impl FnMut() -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(answer) = answer() {
                return answer;
            }
            assert!(Instant::now() < deadline, "not in time: {what}\n{}", self.printed(commands));
            thread::sleep(PAUSE);
        }
    }

    /// Output of kubectl's commands, also of those that fail.
    pub fn printed(&self, commands: &[&[&str]]) -> String {
        let mut text = String::new();
        for words in commands {
            match self.kubectl().args(*words).output() {
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
