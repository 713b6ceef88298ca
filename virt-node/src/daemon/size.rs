//! Processors and memory that come while a guest runs, as in KubeVirt: more sockets and more memory in a machine's template,
//! up to what its run was started with room for. What is less, or more than that, waits for the next run.
//!
//! ```text
//! changed document ─► template ─ followed ─► run's spec ─ enlarge ─► launcher ─► status
//! ```
//!
//! Not here: how much room there is ([`crate::resolve`]).

use api::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec as Spec,
    VirtualMachineInstanceStatus as Status,
};
use api::launch::{Cpu, Memory};
use api::launcher::{Answer, Request};
use api::resource::Quantity;

use super::controller::{Controller, Outcome, Work};
use super::hotplug::needs_restart;
use super::runs::{OVER, phase};
use super::status;
use super::store::Stored;
use crate::error::{Error, Kind};
use crate::launcher::{CallError, Client};

/// Conditions of a run whose guest has not got, or not taken, everything yet.
pub(super) const PROCESSORS: &str = "HotVCPUChange";
pub(super) const MEMORY: &str = "HotMemoryChange";
/// Memory comes in blocks of so many bytes.
const BLOCK: u64 = 2 << 20;
/// Guests' memory is whole mebibytes.
const MIB: u64 = 1 << 20;
/// The job's name behind its run's; no volume is called so.
const JOB: &str = ":size";

fn bytes(amount: Option<&Quantity>) -> Option<u64> {
    amount?.bytes().ok()
}

fn sockets(spec: &Spec) -> Option<u32> {
    spec.domain.cpu.as_ref()?.sockets
}

/// Bytes of memory that a guest is to have.
fn memory(spec: &Spec) -> Option<u64> {
    bytes(spec.domain.memory.as_ref()?.guest.as_ref())?.checked_next_multiple_of(MIB)
}

/// A run's spec with the sockets and the memory of its machine's template, where these are more and there is room.
pub(super) fn followed(template: &Spec, run: &Spec) -> Spec {
    let mut spec = run.clone();
    if let (Some(wanted), Some(cpu)) = (sockets(template), &mut spec.domain.cpu)
        && (cpu.sockets.unwrap_or(1)..=cpu.max_sockets.unwrap_or(0)).contains(&wanted)
    {
        cpu.sockets = Some(wanted);
    }
    let wanted = template.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    if let (Some(bytes_wanted), Some(memory)) = (bytes(wanted), &mut spec.domain.memory)
        && let (Some(before), Some(most)) = (bytes(memory.guest.as_ref()), bytes(memory.max_guest.as_ref()))
        && (before..=most).contains(&bytes_wanted)
        && (bytes_wanted - before).is_multiple_of(BLOCK)
    {
        memory.guest = wanted.cloned();
    }
    spec
}

/// Writes into a run's spec how much its guest can have, where that was left to us.
pub(super) fn keep_room(spec: &mut Spec, cpu: &Cpu, memory: &Memory) {
    spec.domain.cpu.get_or_insert_default().max_sockets.get_or_insert(cpu.max_sockets);
    let most = Quantity(format!("{}Mi", memory.max_guest / MIB));
    spec.domain.memory.get_or_insert_default().max_guest.get_or_insert(most);
}

/// Gives a template the room of a run, where it leaves that to us.
pub(super) fn give_room(template: &mut Spec, run: &Spec) {
    if let Some(most) = run.domain.cpu.as_ref().and_then(|cpu| cpu.max_sockets) {
        template.domain.cpu.get_or_insert_default().max_sockets.get_or_insert(most);
    }
    if let Some(most) = run.domain.memory.as_ref().and_then(|memory| memory.max_guest.clone()) {
        template.domain.memory.get_or_insert_default().max_guest.get_or_insert(most);
    }
}

/// Sockets and bytes of memory that a guest lacks, as how many it is to have; `None`: none.
fn wanted(spec: &Spec, status: &Status) -> Option<(u32, u64)> {
    let there = status.current_cpu_topology.as_ref()?.sockets?;
    let requested = bytes(status.memory.as_ref()?.guest_requested.as_ref())?;
    let (sockets, memory) = (sockets(spec).unwrap_or(there), memory(spec).unwrap_or(requested));
    (sockets > there || memory > requested).then(|| (sockets.max(there), memory.max(requested)))
}

/// Says whether something of what a guest is to have is not there yet.
pub(super) fn note(status: &mut Status, spec: &Spec) {
    let there = status.current_cpu_topology.as_ref().and_then(|topology| topology.sockets);
    let taken = bytes(status.memory.as_ref().and_then(|memory| memory.guest_current.as_ref()));
    let processors = there.zip(sockets(spec)).is_some_and(|(there, wanted)| there < wanted);
    let memory = taken.zip(memory(spec)).is_some_and(|(taken, wanted)| taken < wanted);
    for (kind, lacks) in [(PROCESSORS, processors), (MEMORY, memory)] {
        if lacks {
            status::condition(
                &mut status.conditions,
                kind,
                true,
                "",
                "the guest has not taken all of it yet",
            );
        } else {
            status::without(&mut status.conditions, kind);
        }
    }
}

impl Controller {
    /// Brings the processors and the memory of a machine's template to its run, if nothing else needs another run.
    pub(super) fn follow_size(&mut self, machine: &VirtualMachine) -> Result<(), Error> {
        let run = self.run_of(machine).filter(|run| !run.is_deleting() && phase(run) == "Running");
        let Some(run) = run else { return Ok(()) };
        let template = &machine.spec.template.spec;
        let spec = followed(template, &run.spec);
        if spec == run.spec || needs_restart(template, &spec) {
            return Ok(());
        }
        self.store.put(&VirtualMachineInstance { spec, ..run })
    }

    /// Has a guest that runs get what it lacks; answers whether that is being done.
    pub(super) fn enlarge(&mut self, run: &VirtualMachineInstance) -> Result<bool, Error> {
        let status = run.status.clone().unwrap_or_default();
        let Some((sockets, memory)) = wanted(&run.spec, &status) else { return Ok(false) };
        let key = format!("{}/{JOB}", run.uid());
        if !self.may_try(&key) {
            return Ok(false);
        }
        let topology = status.current_cpu_topology.unwrap_or_default();
        let processors = sockets * topology.cores.unwrap_or(1) * topology.threads.unwrap_or(1);
        let folder = self.state.run(run.uid());
        self.job(&key, Work::Enlarge, move |_, _| {
            let refused = |error| Error::with(Kind::System, "the guest gets no more than it has", error);
            let mut client = Client::connect(&folder).map_err(CallError::from).map_err(refused)?;
            let answer = client.call(Request::Grow { processors, memory }).map_err(refused)?;
            let Answer::Status(seen) = answer else {
                return Err(Error::new(
                    Kind::System,
                    "the launcher answers something else than it was asked",
                ));
            };
            Ok(Outcome::Enlarged { seen: Box::new(seen), memory })
        });
        Ok(true)
    }

    /// Notes what became of that; `of` is the run's UID and the job.
    pub(super) fn enlarged(&mut self, of: &str, outcome: Result<Outcome, Error>) -> Result<(), Error> {
        let run = of.split_once('/').and_then(|(uid, _)| self.run_called(uid));
        // What comes of a run that is over is gone with it.
        let Some(mut run) = run.filter(|run| !OVER.contains(&phase(run))) else {
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
                let text = format!("it is offered {} of memory", status::amount(memory).0);
                let text = match seen.size {
                    Some(size) => format!("the guest has {} processors; {text}", size.processors),
                    None => text,
                };
                self.events.add(&key, false, "Enlarged", &text);
                self.note_status(&mut run, &seen)?;
                // One that has not got it all the same is asked again later.
                if run.status.as_ref().is_some_and(|status| wanted(&run.spec, status).is_some()) {
                    self.failed(of);
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => {
                self.failed(of);
                self.events.add(&key, true, "EnlargeFailed", &error.chain());
                note(run.status.get_or_insert_default(), &run.spec);
                self.store.put(&run)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(cpu: &serde_json::Value, memory: &serde_json::Value) -> Spec {
        serde_json::from_value(json!({"domain": {"cpu": cpu, "memory": memory}})).unwrap()
    }

    /// A run that was started with one socket of two, and 1 GiB of 4.
    fn run() -> Spec {
        spec(&json!({"sockets": 1, "maxSockets": 2}), &json!({"guest": "1Gi", "maxGuest": "4096Mi"}))
    }

    #[test]
    fn more_is_followed_where_there_is_room() {
        for (name, cpu, memory, sockets, guest) in [
            ("the same", json!({"sockets": 1}), json!({"guest": "1Gi"}), 1, "1Gi"),
            ("more", json!({"sockets": 2}), json!({"guest": "3Gi"}), 2, "3Gi"),
            ("too much", json!({"sockets": 3}), json!({"guest": "5Gi"}), 1, "1Gi"),
            ("less", json!({"sockets": 0}), json!({"guest": "512Mi"}), 1, "1Gi"),
            ("no blocks", json!({"sockets": 2}), json!({"guest": "1025Mi"}), 2, "1Gi"),
            ("nothing", json!(null), json!(null), 1, "1Gi"),
        ] {
            let wanted = spec(
                &json!({"sockets": sockets, "maxSockets": 2}),
                &json!({"guest": guest, "maxGuest": "4096Mi"}),
            );
            assert_eq!(followed(&spec(&cpu, &memory), &run()), wanted, "{name}");
        }
        let without_room = spec(&json!({"sockets": 1}), &json!({"guest": "1Gi"}));
        assert_eq!(followed(&run(), &without_room), without_room);
    }

    #[test]
    fn what_comes_while_it_runs_needs_no_restart() {
        let template =
            |sockets: u32, guest: &str| spec(&json!({"sockets": sockets}), &json!({"guest": guest}));
        for (sockets, guest, restart) in
            [(1, "1Gi", false), (2, "4Gi", false), (3, "1Gi", true), (1, "512Mi", true), (2, "5Gi", true)]
        {
            let needs = needs_restart(&template(sockets, guest), &run());
            assert_eq!(needs, restart, "{sockets} {guest}");
        }
        // KubeVirt grows what `memory.guest` says, and nothing else.
        let requested = |amount: &str| -> Spec {
            let resources = json!({"requests": {"memory": amount}});
            serde_json::from_value(json!({"domain": {"resources": resources}})).unwrap()
        };
        assert!(!needs_restart(&requested("1Gi"), &requested("1Gi")));
        assert!(
            needs_restart(&requested("2Gi"), &requested("1Gi")),
            "a request alone waits for the next run"
        );
        let mut started = template(1, "1Gi");
        let cpu = Cpu {
            sockets: 1,
            max_sockets: 4,
            cores: 1,
            threads: 1,
            model: api::launch::CpuModel::HostModel,
            features: Vec::new(),
        };
        keep_room(&mut started, &cpu, &Memory { guest: 1 << 30, max_guest: 4 << 30, huge_page: None });
        assert!(!needs_restart(&template(1, "1Gi"), &started), "room that was filled in");
        assert_eq!(followed(&template(4, "4Gi"), &started).domain.cpu.unwrap().sockets, Some(4));
    }

    #[test]
    fn what_a_guest_lacks_is_wanted_until_it_is_there() {
        let mut status = Status::default();
        assert_eq!(wanted(&run(), &status), None, "not started");
        let cpu = Cpu {
            sockets: 1,
            max_sockets: 2,
            cores: 1,
            threads: 1,
            model: api::launch::CpuModel::HostModel,
            features: Vec::new(),
        };
        status::size(&mut status, &cpu, &Memory { guest: 1 << 30, max_guest: 4 << 30, huge_page: None });
        assert_eq!(wanted(&run(), &status), None);
        let more = followed(&spec(&json!({"sockets": 2}), &json!({"guest": "2Gi"})), &run());
        assert_eq!(wanted(&more, &status), Some((2, 2 << 30)));
        note(&mut status, &more);
        let kinds: Vec<&str> = status.conditions.iter().map(|one| one.kind.as_str()).collect();
        assert_eq!(kinds, [PROCESSORS, MEMORY]);
        status.memory.as_mut().unwrap().guest_requested = Some(Quantity("2Gi".to_owned()));
        status.current_cpu_topology.as_mut().unwrap().sockets = Some(2);
        assert_eq!(wanted(&more, &status), None, "it is offered");
        note(&mut status, &more);
        assert_eq!(status.conditions.len(), 1, "but not taken");
        status.memory.as_mut().unwrap().guest_current = Some(Quantity("2Gi".to_owned()));
        note(&mut status, &more);
        assert_eq!(status.conditions, []);
    }
}
