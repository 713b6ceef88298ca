//! Rules for virtual machines, once for the single machine, the operator, its admission and the node agent: pure, no I/O.
//!
//! ```text
//! text ─ validate::Documents ─► Checked ─ admission ─► stored object ─ machine ─► instance ─ resolve ─► api::launch::Launch
//!          (fields, rules)               (defaults)                  (strategies)            (facts)
//!                                            status, printable ◄─ api::launcher::Status ◄─ launcher
//!                                            live: what follows the template while the guest runs
//! ```
//!
//! - [`validate`]: what each field of a document becomes, by its path; [`fields`] is the table of fields without effect.
//! - [`admission`]: what is filled in when an object is created.
//! - [`instancetype`]: what instance types and preferences make of a template.
//! - [`machine`]: when a machine has an instance; [`run`]: the next step of an instance with its launcher.
//! - [`resolve`]: every rule between fields and every default of a guest, to its launch document, given the facts of the
//!   machine and where each volume and network is; [`pod`]: where these are in a launcher pod.
//! - [`host_devices`]: devices of the host that a guest asks for, and those that it may have; [`dedicated`]: CPUs to itself.
//! - [`live`]: what changes while the guest runs. [`size`]: the size of a new disk on an empty claim. [`state`]: what a guest
//!   keeps besides its disks. [`overhead`]: memory that its launcher needs besides the guest's.
//! - [`status`]: phases and conditions; [`printable`]: a machine's state in one word; [`vnic`]: interfaces in metrics.
//!
//! Not here: clients, files, processes, clocks ([`time::now`] excepted).

pub mod admission;
pub mod dedicated;
pub mod fields;
pub mod finding;
pub mod host_devices;
pub mod instancetype;
pub mod live;
pub mod machine;
pub mod overhead;
pub mod pod;
pub mod printable;
pub mod resolve;
pub mod run;
pub mod size;
pub mod state;
pub mod status;
pub mod time;
pub mod validate;
pub mod vnic;
