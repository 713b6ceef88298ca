//! USB redirection channels of a guest, through the API server: a client each, until all are taken. Not here: a client's
//! device in the guest, which the launcher's tests have.

use serde_json::json;

use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::machines::{claim, machine, until_answers};
use crate::platform::place::{MACHINES, PLACE};

const NAMESPACE: &str = "usb";
/// Bytes of a packet's head, and of the name in the first one.
const HEAD: usize = 12;
const NAME: usize = 64;

fn open() -> Result<Console<'static>, String> {
    Console::stream(&PLACE, NAMESPACE, "vm", "usbredir")
}

/// Reads the first packet of QEMU: of type 0, with its name.
fn read_hello(client: &mut Console<'_>) {
    let packet = client.bytes(HEAD + NAME).unwrap();
    assert_eq!(packet[..4], [0; 4], "{packet:?}");
    assert!(packet[HEAD..].starts_with(b"qemu usb-redir guest"), "{packet:?}");
}

#[test]
fn each_client_has_a_usb_channel_until_all_are_taken() {
    PLACE.namespace(NAMESPACE);
    let _root = claim(NAMESPACE, "vm", &guest::disk());
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    vm["spec"]["template"]["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
    PLACE.create(MACHINES, NAMESPACE, &vm);
    until_answers(NAMESPACE, "vm", 1);
    let mut clients: Vec<_> = (0..4).map(|_| open().unwrap()).collect();
    clients.iter_mut().for_each(read_hello);
    let refused = open().map(drop).unwrap_err();
    assert!(refused.starts_with("503") && refused.contains("All USB devices are in use."), "{refused}");
    drop(clients.remove(1));
    let mut next = PLACE.until(NAMESPACE, "a free USB channel", || open().ok());
    read_hello(&mut next);
    let refused = open().map(drop).unwrap_err();
    assert!(refused.starts_with("503"), "the others are still open: {refused}");
    until_answers(NAMESPACE, "vm", 1);
    PLACE.delete(MACHINES, NAMESPACE, "vm");
    PLACE.remove_namespace(NAMESPACE);
}
