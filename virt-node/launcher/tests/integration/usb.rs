//! USB redirection channels, from a client's side (usbredir protocol 0.7): QEMU greets each client, and the guest's firmware
//! reads the descriptors of a client's device.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use api::launch::{USB_CHANNELS, usb_channel};
use api::launcher::{Request, State};

use crate::support::running::{HALTS, Launcher, TIMEOUT};

/// Types of packets.
const HELLO: u32 = 0;
const DEVICE_CONNECT: u32 = 1;
const INTERFACE_INFO: u32 = 4;
const EP_INFO: u32 = 5;
const CONTROL: u32 = 100;

/// Capabilities that QEMU requires of a client on an xHCI controller: sizes of endpoints' packets, 64-bit numbers, 32-bit lengths.
const CAPABILITIES: u32 = 1 << 4 | 1 << 5 | 1 << 6;

/// A packet: type, length, number, content; all numbers are little endian.
fn packet(kind: u32, number: u64, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap();
    [&kind.to_le_bytes()[..], &length.to_le_bytes(), &number.to_le_bytes(), content].concat()
}

fn read<const N: usize>(channel: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    channel.read_exact(&mut bytes).unwrap();
    bytes
}

fn read_content(channel: &mut UnixStream, length: u32) -> Vec<u8> {
    let mut content = vec![0; length as usize];
    channel.read_exact(&mut content).unwrap();
    content
}

fn connect(launcher: &Launcher, number: u8) -> UnixStream {
    let channel = UnixStream::connect(launcher.folder().join(usb_channel(number))).unwrap();
    channel.set_read_timeout(Some(TIMEOUT)).unwrap();
    channel
}

/// Reads the first packet: its number has 32 bits.
fn read_hello(channel: &mut UnixStream) {
    let [kind, length, _] = [(); 3].map(|()| u32::from_le_bytes(read(channel)));
    let content = read_content(channel, length);
    let name = String::from_utf8_lossy(&content);
    assert!(kind == HELLO && name.starts_with("qemu usb-redir guest"), "{kind} {name}");
}

/// The packets of a client with a device of full speed and of a class that firmware has no driver for.
fn device() -> Vec<u8> {
    let mut name = b"a test".to_vec();
    name.resize(64, 0);
    let hello =
        [&HELLO.to_le_bytes()[..], &68_u32.to_le_bytes(), &[0; 4], &name, &CAPABILITIES.to_le_bytes()]
            .concat();
    // The type of each endpoint, outgoing ones first: control, or none. Then intervals, interfaces, and sizes of packets.
    let mut endpoints = vec![255_u8; 32];
    (endpoints[0], endpoints[16]) = (0, 0);
    endpoints.resize(32 * 5, 0);
    (endpoints[96], endpoints[96 + 2 * 16]) = (64, 64);
    // One interface: its number, and then the class, subclass and protocol.
    let mut interfaces = 1_u32.to_le_bytes().to_vec();
    interfaces.resize(4 + 4 * 32, 0);
    interfaces[4 + 32] = 255;
    let full_speed = [1, 255, 0, 0, 0x34, 0x12, 0x78, 0x56];
    let packets = [
        packet(EP_INFO, 0, &endpoints),
        packet(INTERFACE_INFO, 0, &interfaces),
        packet(DEVICE_CONNECT, 0, &full_speed),
    ];
    [hello, packets.concat()].concat()
}

/// The next request of the guest for a descriptor: the packet's number and content.
fn read_request(channel: &mut UnixStream) -> (u64, Vec<u8>) {
    loop {
        let [kind, length] = [(); 2].map(|()| u32::from_le_bytes(read(channel)));
        let number = u64::from_le_bytes(read(channel));
        let content = read_content(channel, length);
        if kind == CONTROL {
            // Endpoint 0, GET_DESCRIPTOR, of the device.
            assert_eq!(content[..3], [0x80, 6, 0x80], "{content:?}");
            return (number, content);
        }
    }
}

#[test]
fn a_guest_reads_the_descriptors_of_a_clients_device() {
    let launcher = Launcher::new();
    let mut document = launcher.document(HALTS);
    document.devices.usb_channels = Some(USB_CHANNELS);
    // The firmware looks for devices once, at its start: this one is there before.
    document.paused = true;
    launcher.launch(&document);
    launcher.until(State::Paused);
    let mut channels: Vec<UnixStream> = (0..USB_CHANNELS).map(|number| connect(&launcher, number)).collect();
    channels[0].write_all(&device()).unwrap();
    launcher.ask(Request::Unpause).unwrap();
    for channel in &mut channels {
        read_hello(channel);
    }
    let (number, request) = read_request(&mut channels[0]);
    assert_eq!(request[4..6], [0, 1], "the descriptor of the device: {request:?}");
    let descriptor = [18, 1, 0, 2, 255, 0, 0, 64, 0x34, 0x12, 0x78, 0x56, 0, 1, 0, 0, 0, 1];
    let wanted = usize::from(u16::from_le_bytes([request[8], request[9]])).min(descriptor.len());
    let mut answer = request;
    // The status of a success.
    answer[3] = 0;
    answer[8..10].copy_from_slice(&u16::try_from(wanted).unwrap().to_le_bytes());
    answer.extend_from_slice(&descriptor[..wanted]);
    channels[0].write_all(&packet(CONTROL, number, &answer)).unwrap();
    let (_, request) = read_request(&mut channels[0]);
    assert_eq!(request[4..6], [0, 2], "the guest has read it, and reads the configuration: {request:?}");
    // A channel serves one client after the other.
    channels.clear();
    for number in 0..USB_CHANNELS {
        read_hello(&mut connect(&launcher, number));
    }
    assert_eq!(launcher.status().state, State::Running);
}
