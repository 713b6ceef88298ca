//! Requests to start a VM, in its status, and the strategy in its spec. Pure.

use api::kubevirt::{StateChangeRequest, VirtualMachine};

use virt::machine::{Strategy, request_start};

/// In the data of a start request: the guest waits until it is unpaused.
pub(super) const PAUSED: &str = "paused";
/// In the data of a start request: it is for one run, and the strategy stays.
pub(super) const ONCE: &str = "once";

/// Whether a start is requested with this word in its data.
pub(super) fn is_asked(requests: &[StateChangeRequest], word: &str) -> bool {
    let mut starts = requests.iter().filter(|request| request.action == "Start");
    starts.any(|request| request.data.get(word).is_some_and(|value| value == "true"))
}

/// Writes a strategy where the machine has its own.
pub(super) fn set_strategy(machine: &mut VirtualMachine, strategy: Strategy) {
    if machine.spec.running.is_some() {
        machine.spec.running = Some(strategy == Strategy::Always);
    } else {
        machine.spec.run_strategy = Some(strategy.word().to_owned());
    }
    machine.metadata.generation = Some(machine.metadata.generation.unwrap_or(1) + 1);
}

/// Replaces the requests to start a machine.
pub(super) fn start_request(machine: &mut VirtualMachine, paused: bool, once: bool) {
    let status = machine.status.get_or_insert_default();
    status.state_change_requests.retain(|request| request.action != "Start");
    request_start(&mut status.state_change_requests);
    let words = [(PAUSED, paused), (ONCE, once)].into_iter().filter(|(_, asked)| *asked);
    if let Some(request) = status.state_change_requests.last_mut() {
        request.data.extend(words.map(|(word, _)| (word.to_owned(), "true".to_owned())));
    }
}
