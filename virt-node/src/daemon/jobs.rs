//! The number of jobs at once. Those that fill volumes or start guests take memory, processors and disk: at most [`MOST`] of
//! them run, and others wait for their turn. Not here: the work itself.

use std::collections::{BTreeSet, VecDeque};

/// Jobs that run at once.
pub(super) const MOST: usize = 16;

/// The work of a job's thread.
pub(super) type Task = Box<dyn FnOnce() + Send>;

/// Running jobs, and waiting ones in their order: the object, the kind of work (`W`), and the task.
pub(super) struct Jobs<W> {
    running: BTreeSet<String>,
    waiting: VecDeque<(String, W, Task)>,
}

impl<W> Default for Jobs<W> {
    fn default() -> Self {
        Self { running: BTreeSet::new(), waiting: VecDeque::new() }
    }
}

impl<W> Jobs<W> {
    /// The task, if it may run now; else it waits.
    pub(super) fn admit(&mut self, of: &str, work: W, task: Task) -> Option<(String, W, Task)> {
        if self.running.len() >= MOST {
            self.waiting.push_back((of.to_owned(), work, task));
            return None;
        }
        self.running.insert(of.to_owned());
        Some((of.to_owned(), work, task))
    }

    /// The next task, now that the job of this object has ended.
    pub(super) fn ended(&mut self, of: &str) -> Option<(String, W, Task)> {
        if !self.running.remove(of) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.running.insert(next.0.clone());
        Some(next)
    }

    /// The task of an object that waits: it was asked to end, which it does at once.
    pub(super) fn recall(&mut self, of: &str) -> Option<(String, W, Task)> {
        let place = self.waiting.iter().position(|(one, _, _)| one == of)?;
        self.waiting.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_wait_in_their_order_and_those_that_are_recalled_do_not() {
        let mut jobs = Jobs::<()>::default();
        let name = |number: usize| number.to_string();
        for number in 0..MOST {
            assert!(jobs.admit(&name(number), (), Box::new(|| {})).is_some());
        }
        for number in MOST..MOST + 3 {
            assert!(jobs.admit(&name(number), (), Box::new(|| {})).is_none());
        }
        assert!(jobs.ended("another").is_none(), "it was not counted");
        assert!(jobs.recall(&name(MOST)).is_some() && jobs.recall(&name(MOST)).is_none());
        assert!(jobs.ended("0").is_some());
        assert!(jobs.running.contains(&name(MOST + 1)));
        assert!(jobs.ended("1").is_some() && jobs.ended("2").is_none());
        assert_eq!(jobs.running.len(), MOST - 1);
    }
}
