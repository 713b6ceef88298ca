//! Processors and memory that come while a guest runs, as in KubeVirt: more sockets and more memory in a machine's template,
//! up to what its run was started with room for. What is less, or more than that, waits for the next run.
//!
//! ```text
//! changed document ─► template ─ followed ─► run's spec ─ enlarge ─► launcher ─► status
//! ```
//!
//! Not here: how much room there is ([`virt::resolve`]).

use api::kubevirt::VirtualMachineInstance;
use api::launcher::{Answer, Request};

use super::controller::{Controller, Outcome, Work};
use super::store::Stored;
use crate::error::{Error, Kind};
use guest::CallError;
use virt::live;
use virt::machine::{FINAL, phase};
use virt::status;

/// The job's name behind its run's; no volume is called so.
const JOB: &str = ":size";

impl Controller {
    /// Has a guest that runs get what it lacks; answers whether that is being done.
    pub(super) fn enlarge(&mut self, run: &VirtualMachineInstance) -> Result<bool, Error> {
        let status = run.status.clone().unwrap_or_default();
        let Some((sockets, memory)) = live::size_wanted(&run.spec, &status) else { return Ok(false) };
        let key = format!("{}/{JOB}", run.uid());
        if !self.may_try(&key) {
            return Ok(false);
        }
        let topology = status.current_cpu_topology.unwrap_or_default();
        let processors = sockets * topology.cores.unwrap_or(1) * topology.threads.unwrap_or(1);
        let folder = self.state.run(run.uid());
        self.job(&key, Work::Enlarge, move |_, _| {
            let refused =
                |error| Error::with(Kind::System, "cannot add vCPUs or memory to the running guest", error);
            let mut client = folder.client().map_err(CallError::from).map_err(refused)?;
            let answer = client.call(Request::Grow { processors, memory }).map_err(refused)?;
            let Answer::Status(seen) = answer else {
                return Err(Error::new(Kind::System, "the launcher sent an unexpected answer"));
            };
            Ok(Outcome::Enlarged { seen: Box::new(seen), memory })
        });
        Ok(true)
    }

    /// Notes what became of that; `of` is the run's UID and the job.
    pub(super) fn enlarged(&mut self, of: &str, outcome: Result<Outcome, Error>) -> Result<(), Error> {
        let run = of.split_once('/').and_then(|(uid, _)| self.run_called(uid));
        // The result of a finished run is discarded with it.
        let Some(mut run) = run.filter(|run| !FINAL.contains(&phase(run))) else {
            self.memory.remove(of);
            return Ok(());
        };
        let key = run.key();
        match outcome {
            Ok(Outcome::Enlarged { seen, memory }) => {
                self.memory.remove(of);
                let status = run.status.get_or_insert_default();
                if let Some(there) = &mut status.memory {
                    there.guest_requested = Some(status::amount(memory));
                }
                let text = format!("is offered {} of memory", status::amount(memory).0);
                let text = match seen.size {
                    Some(size) => format!("the guest has {} vCPUs and {text}", size.processors),
                    None => format!("the guest {text}"),
                };
                self.events.add(&key, false, "Enlarged", &text);
                self.note_status(&mut run, &seen)?;
                // One that has not got it all the same is asked again later.
                if run.status.as_ref().is_some_and(|status| live::size_wanted(&run.spec, status).is_some()) {
                    self.failed(of);
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => {
                self.failed(of);
                self.events.add(&key, true, "EnlargeFailed", &error.chain());
                live::note_size(run.status.get_or_insert_default(), &run.spec);
                self.store.put(&run)
            }
        }
    }
}
