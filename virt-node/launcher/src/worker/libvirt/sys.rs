//! libvirt's C library, loaded when the worker starts: its functions by name, its objects as values that free themselves.
//!
//! Loaded rather than linked, since linking would load it and fifty libraries more into the launcher's first process too.
//! Signatures are those of libvirt's headers (libvirt.h, libvirt-qemu.h, version 6 and later). Not here: what states and
//! events mean.
#![expect(unsafe_code, reason = "a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::mpsc::Sender;

use super::{Failure, Notice};

/// Objects of libvirt, known by address only.
type Object = *mut c_void;
type Callback = unsafe extern "C" fn();

macro_rules! functions {
    ($table:ident from $file:literal: $($name:ident($($argument:ty),*) -> $answer:ty;)*) => {
        #[expect(non_snake_case, reason = "libvirt's names")]
        struct $table {
            $($name: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl $table {
            fn load() -> Result<Self, Failure> {
                let library = open($file)?;
                Ok(Self {
                    $($name: {
                        let address = find(library, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the header of the library declares the function so.
                        unsafe {
                            std::mem::transmute::<Object, unsafe extern "C" fn($($argument),*) -> $answer>(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! { Libvirt from "libvirt.so.0\0":
    virInitialize() -> c_int;
    virSetErrorFunc(Object, Option<unsafe extern "C" fn(Object, Object)>) -> ();
    virGetLastErrorMessage() -> *const c_char;
    virEventRegisterDefaultImpl() -> c_int;
    virEventRunDefaultImpl() -> c_int;
    virConnectOpen(*const c_char) -> Object;
    virConnectDomainEventRegisterAny(Object, Object, c_int, Callback, Object, Option<Callback>) -> c_int;
    virConnectListAllDomains(Object, *mut *mut Object, c_uint) -> c_int;
    virConnectGetCapabilities(Object) -> *mut c_char;
    virConnectGetDomainCapabilities(Object, *const c_char, *const c_char, *const c_char, *const c_char, c_uint) -> *mut c_char;
    virConnectBaselineHypervisorCPU(Object, *const c_char, *const c_char, *const c_char, *const c_char, *const *const c_char, c_uint, c_uint) -> *mut c_char;
    virDomainCreateXML(Object, *const c_char, c_uint) -> Object;
    virDomainFree(Object) -> c_int;
    virDomainGetState(Object, *mut c_int, *mut c_int, c_uint) -> c_int;
    virDomainMemoryStats(Object, Object, c_uint, c_uint) -> c_int;
    virDomainListGetStats(*mut Object, c_uint, *mut *mut *mut Record, c_uint) -> c_int;
    virDomainStatsRecordListFree(*mut *mut Record) -> ();
    virDomainSuspend(Object) -> c_int;
    virDomainResume(Object) -> c_int;
    virDomainShutdownFlags(Object, c_uint) -> c_int;
    virDomainReboot(Object, c_uint) -> c_int;
    virDomainReset(Object, c_uint) -> c_int;
    virDomainDestroyFlags(Object, c_uint) -> c_int;
    virDomainGetXMLDesc(Object, c_uint) -> *mut c_char;
    virDomainAttachDeviceFlags(Object, *const c_char, c_uint) -> c_int;
    virDomainDetachDeviceAlias(Object, *const c_char, c_uint) -> c_int;
    virDomainUpdateDeviceFlags(Object, *const c_char, c_uint) -> c_int;
    virDomainSetVcpusFlags(Object, c_uint, c_uint) -> c_int;
    virDomainBlockResize(Object, *const c_char, c_ulonglong, c_uint) -> c_int;
    virDomainCoreDumpWithFormat(Object, *const c_char, c_uint, c_uint) -> c_int;
    virDomainScreenshot(Object, Object, c_uint, c_uint) -> *mut c_char;
    virStreamNew(Object, c_uint) -> Object;
    virStreamRecv(Object, *mut c_char, usize) -> c_int;
    virStreamFinish(Object) -> c_int;
    virStreamAbort(Object) -> c_int;
    virStreamFree(Object) -> c_int;
}

functions! { LibvirtQemu from "libvirt-qemu.so.0\0":
    virDomainQemuMonitorCommand(Object, *const c_char, *mut *mut c_char, c_uint) -> c_int;
    virDomainQemuAgentCommand(Object, *const c_char, c_int, c_uint) -> *mut c_char;
    virConnectDomainQemuMonitorEventRegister(Object, Object, *const c_char, MonitorEvent, Object, Option<Callback>, c_uint) -> c_int;
}

/// virConnectBaselineCPUFlags.
const EXPAND_FEATURES: c_uint = 1;

/// virDomainStatsRecord.
#[repr(C)]
struct Record {
    _domain: Object,
    parameters: *const Parameter,
    count: c_int,
}

/// virTypedParameter.
#[repr(C)]
struct Parameter {
    name: [c_char; 80],
    kind: c_int,
    value: ParameterValue,
}

/// The union of a [`Parameter`]'s values, as far as they are read.
#[repr(C)]
union ParameterValue {
    int: c_int,
    unsigned: c_uint,
    long: c_longlong,
    unsigned_long: c_ulonglong,
    flag: c_char,
    text: *const c_char,
}

/// A statistic's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    Number(u64),
    Text(String),
}

impl Parameter {
    /// Its name and value; negative numbers and fractions are not statistics.
    ///
    /// # Safety
    /// libvirt filled it.
    unsafe fn statistic(&self) -> Option<(String, Statistic)> {
        // SAFETY: the value that is read is that of the kind (virTypedParameterType); texts end with a zero, the name, too.
        unsafe {
            let value = match self.kind {
                1 => Statistic::Number(u64::try_from(self.value.int).ok()?),
                2 => Statistic::Number(self.value.unsigned.into()),
                3 => Statistic::Number(u64::try_from(self.value.long).ok()?),
                4 => Statistic::Number(self.value.unsigned_long),
                6 => Statistic::Number(u64::from(self.value.flag != 0)),
                7 => Statistic::Text(texted(self.value.text)),
                _ => return None,
            };
            Some((texted(self.name.as_ptr()), value))
        }
    }
}

/// Why the dynamic linker refused.
fn refused(what: &str) -> Failure {
    // SAFETY: dlerror answers null or a text that is valid until the next call of this thread.
    let said = unsafe {
        let said = libc::dlerror();
        if said.is_null() { what.to_owned() } else { CStr::from_ptr(said).to_string_lossy().into_owned() }
    };
    Failure(format!("{said}; on Debian: apt install libvirt0 libvirt-daemon-driver-qemu"))
}

/// Loads a library, for good. `file` ends with a zero.
fn open(file: &str) -> Result<Object, Failure> {
    // SAFETY: the name ends with a zero; the library's initializers are trusted as a linked library's are.
    let library = unsafe { libc::dlopen(file.as_ptr().cast(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if library.is_null() { Err(refused(file)) } else { Ok(library) }
}

/// The address of a function. `name` ends with a zero.
fn find(library: Object, name: &str) -> Result<Object, Failure> {
    // SAFETY: the library is loaded and stays so; the name ends with a zero.
    let address = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if address.is_null() { Err(refused(name)) } else { Ok(address) }
}

fn text(text: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure("a text for libvirt holds a NUL byte".to_owned()))
}

/// An open connection; it stays open until the process ends.
pub(crate) struct Connection {
    libvirt: Libvirt,
    qemu: LibvirtQemu,
    object: NonNull<c_void>,
}

// SAFETY: libvirt's connections may be used by any number of threads at once; the tables do not change.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// A domain.
pub(crate) struct Domain<'a> {
    connection: &'a Connection,
    object: NonNull<c_void>,
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        // SAFETY: this value held the one reference that it was made with.
        unsafe { (self.connection.libvirt.virDomainFree)(self.object.as_ptr()) };
    }
}

impl Connection {
    /// Loads libvirt and opens a URI. What happens to domains goes to `notices` while [`Self::run`] runs.
    pub(crate) fn open(uri: &str, notices: Sender<Notice>) -> Result<Self, Failure> {
        let (libvirt, qemu) = (Libvirt::load()?, LibvirtQemu::load()?);
        let uri = text(uri)?;
        // SAFETY: initialization comes first, then the event loop, then the connection, as libvirt asks; the function for
        // errors takes what libvirt gives it.
        let object = unsafe {
            if (libvirt.virInitialize)() < 0 || (libvirt.virEventRegisterDefaultImpl)() < 0 {
                return Err(last(&libvirt));
            }
            (libvirt.virSetErrorFunc)(null_mut(), Some(silent));
            (libvirt.virConnectOpen)(uri.as_ptr())
        };
        let object = NonNull::new(object).ok_or_else(|| last(&libvirt))?;
        let connection = Self { libvirt, qemu, object };
        connection.listen(notices)?;
        Ok(connection)
    }

    fn listen(&self, notices: Sender<Notice>) -> Result<(), Failure> {
        // Callbacks come until the process ends.
        let opaque: Object = std::ptr::from_ref(Box::leak(Box::new(notices))).cast_mut().cast();
        // SAFETY: each callback has the signature of its event (libvirt-domain.h) and is given the sender, which stays.
        let registered = unsafe {
            use std::mem::transmute;
            let lifecycle: Lifecycle = on_lifecycle;
            let plain: Plain = on_reboot;
            let watchdog: Watchdog = on_watchdog;
            let io_error: IoError = on_io_error;
            let agent: Lifecycle = on_agent;
            let removed: Removed = on_removed;
            let added: Removed = on_added;
            let memory: MemorySize = on_memory;
            [
                (0, transmute::<Lifecycle, Callback>(lifecycle)),
                (1, transmute::<Plain, Callback>(plain)),
                (3, transmute::<Watchdog, Callback>(watchdog)),
                (6, transmute::<IoError, Callback>(io_error)),
                (15, transmute::<Removed, Callback>(removed)),
                (18, transmute::<Lifecycle, Callback>(agent)),
                (19, transmute::<Removed, Callback>(added)),
                (26, transmute::<MemorySize, Callback>(memory)),
            ]
            .into_iter()
            .all(|(event, callback)| {
                (self.libvirt.virConnectDomainEventRegisterAny)(
                    self.object.as_ptr(),
                    null_mut(),
                    event,
                    callback,
                    opaque,
                    None,
                ) >= 0
            })
        };
        // SAFETY: the callback is of the type that is declared, and is given the same sender.
        let registered = registered
            && unsafe {
                (self.qemu.virConnectDomainQemuMonitorEventRegister)(
                    self.object.as_ptr(),
                    null_mut(),
                    c"SHUTDOWN".as_ptr(),
                    on_shutdown,
                    opaque,
                    None,
                    0,
                ) >= 0
            };
        if registered { Ok(()) } else { Err(last(&self.libvirt)) }
    }

    /// One round of libvirt's event loop: waits for something and handles it.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        // SAFETY: the default event loop is registered; one thread runs it.
        self.done(unsafe { (self.libvirt.virEventRunDefaultImpl)() })
    }

    /// All domains that are active.
    pub(crate) fn domains(&self) -> Result<Vec<Domain<'_>>, Failure> {
        let mut list: *mut Object = null_mut();
        // SAFETY: libvirt answers a list of so many domains, each with a reference of ours, which we free with the list.
        unsafe {
            let count = (self.libvirt.virConnectListAllDomains)(self.object.as_ptr(), &raw mut list, 1);
            let count = usize::try_from(count).map_err(|_| last(&self.libvirt))?;
            let domains = (0..count).filter_map(|index| NonNull::new(*list.add(index)));
            let domains = domains.map(|object| Domain { connection: self, object }).collect();
            libc::free(list.cast());
            Ok(domains)
        }
    }

    /// Makes a domain and starts it; `flags` are virDomainCreateFlags.
    pub(crate) fn create(&self, xml: &str, flags: c_uint) -> Result<(), Failure> {
        let xml = text(xml)?;
        // SAFETY: the text is valid; the reference that comes back is freed by `Domain`.
        let object = unsafe { (self.libvirt.virDomainCreateXML)(self.object.as_ptr(), xml.as_ptr(), flags) };
        let object = NonNull::new(object).ok_or_else(|| last(&self.libvirt))?;
        drop(Domain { connection: self, object });
        Ok(())
    }

    /// The host and its emulators, as XML.
    pub(crate) fn capabilities(&self) -> Result<String, Failure> {
        // SAFETY: the answer is ours to free.
        unsafe {
            let answer = (self.libvirt.virConnectGetCapabilities)(self.object.as_ptr());
            self.taken(answer)
        }
    }

    /// The features of an emulator with a kind of domain (`kvm` or `qemu`), as XML: probed if unknown.
    pub(crate) fn domain_capabilities(&self, emulator: &str, kind: &str) -> Result<String, Failure> {
        let (emulator, machine, kind) = (text(emulator)?, text("q35")?, text(kind)?);
        // SAFETY: texts are valid or null; the answer is ours to free.
        unsafe {
            let answer = (self.libvirt.virConnectGetDomainCapabilities)(
                self.object.as_ptr(),
                emulator.as_ptr(),
                null(),
                machine.as_ptr(),
                kind.as_ptr(),
                0,
            );
            self.taken(answer)
        }
    }

    /// A processor (XML) with all of its features, as XML.
    pub(crate) fn expanded(&self, emulator: &str, kind: &str, processor: &str) -> Result<String, Failure> {
        let (emulator, machine, kind) = (text(emulator)?, text("q35")?, text(kind)?);
        let processor = text(processor)?;
        let all = [processor.as_ptr()];
        // SAFETY: texts are valid or null, and there is one processor; the answer is ours to free.
        unsafe {
            let answer = (self.libvirt.virConnectBaselineHypervisorCPU)(
                self.object.as_ptr(),
                emulator.as_ptr(),
                null(),
                machine.as_ptr(),
                kind.as_ptr(),
                all.as_ptr(),
                1,
                EXPAND_FEATURES,
            );
            self.taken(answer)
        }
    }

    fn done(&self, answer: c_int) -> Result<(), Failure> {
        if answer < 0 { Err(last(&self.libvirt)) } else { Ok(()) }
    }

    /// A text of libvirt's that is ours now.
    ///
    /// # Safety
    /// It is null, or a text that ends with a zero and was made by malloc.
    unsafe fn taken(&self, answer: *mut c_char) -> Result<String, Failure> {
        if answer.is_null() {
            return Err(last(&self.libvirt));
        }
        // SAFETY: as above.
        unsafe {
            let text = CStr::from_ptr(answer).to_string_lossy().into_owned();
            libc::free(answer.cast());
            Ok(text)
        }
    }
}

impl Domain<'_> {
    /// virDomainState, and its reason.
    pub(crate) fn state(&self) -> Result<(c_int, c_int), Failure> {
        let (mut state, mut reason) = (0, 0);
        // SAFETY: the domain and both places are valid.
        let answer = unsafe {
            (self.connection.libvirt.virDomainGetState)(
                self.object.as_ptr(),
                &raw mut state,
                &raw mut reason,
                0,
            )
        };
        self.connection.done(answer).map(|()| (state, reason))
    }

    /// Makes a call that waits for all operations on the domain.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        // virDomainMemoryStatStruct: a number of four bytes and one of eight.
        let mut statistics = [0_u64; 2];
        // SAFETY: there is room for the one statistic that is asked for.
        let answer = unsafe {
            let room = statistics.as_mut_ptr().cast();
            (self.connection.libvirt.virDomainMemoryStats)(self.object.as_ptr(), room, 1, 0)
        };
        self.connection.done(answer)
    }

    /// Statistics of the groups `groups` (virDomainStatsTypes). `flags` are virConnectGetAllDomainStatsFlags.
    pub(crate) fn statistics(
        &self,
        groups: c_uint,
        flags: c_uint,
    ) -> Result<Vec<(String, Statistic)>, Failure> {
        let libvirt = &self.connection.libvirt;
        let mut domains = [self.object.as_ptr(), null_mut()];
        let mut records: *mut *mut Record = null_mut();
        // SAFETY: the list of domains ends with null; libvirt answers so many records, each with the number of its
        // parameters; they are freed once they are copied.
        unsafe {
            let count =
                (libvirt.virDomainListGetStats)(domains.as_mut_ptr(), groups, &raw mut records, flags);
            let count = usize::try_from(count).map_err(|_| last(libvirt))?;
            let mut all = Vec::new();
            for index in 0..count {
                let record = &**records.add(index);
                let parameters = usize::try_from(record.count).unwrap_or(0);
                for at in 0..parameters {
                    let parameter = &*record.parameters.add(at);
                    all.extend(parameter.statistic());
                }
            }
            (libvirt.virDomainStatsRecordListFree)(records);
            Ok(all)
        }
    }

    pub(crate) fn suspend(&self) -> Result<(), Failure> {
        // SAFETY: the domain is valid.
        self.connection.done(unsafe { (self.connection.libvirt.virDomainSuspend)(self.object.as_ptr()) })
    }

    pub(crate) fn resume(&self) -> Result<(), Failure> {
        // SAFETY: the domain is valid.
        self.connection.done(unsafe { (self.connection.libvirt.virDomainResume)(self.object.as_ptr()) })
    }

    /// `flags` are virDomainShutdownFlagValues.
    pub(crate) fn shut_down(&self, flags: c_uint) -> Result<(), Failure> {
        let call = self.connection.libvirt.virDomainShutdownFlags;
        // SAFETY: the domain is valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), flags) })
    }

    /// `flags` are virDomainRebootFlagValues.
    pub(crate) fn reboot(&self, flags: c_uint) -> Result<(), Failure> {
        // SAFETY: the domain is valid.
        self.connection
            .done(unsafe { (self.connection.libvirt.virDomainReboot)(self.object.as_ptr(), flags) })
    }

    pub(crate) fn reset(&self) -> Result<(), Failure> {
        // SAFETY: the domain is valid.
        self.connection.done(unsafe { (self.connection.libvirt.virDomainReset)(self.object.as_ptr(), 0) })
    }

    pub(crate) fn destroy(&self) -> Result<(), Failure> {
        let call = self.connection.libvirt.virDomainDestroyFlags;
        // SAFETY: the domain is valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), 0) })
    }

    /// The domain as XML, as it is now.
    pub(crate) fn xml(&self) -> Result<String, Failure> {
        // SAFETY: the domain is valid; the answer is ours to free.
        unsafe {
            let answer = (self.connection.libvirt.virDomainGetXMLDesc)(self.object.as_ptr(), 0);
            self.connection.taken(answer)
        }
    }

    /// `flags` are virDomainDeviceModifyFlags.
    pub(crate) fn attach(&self, xml: &str, flags: c_uint) -> Result<(), Failure> {
        let (xml, call) = (text(xml)?, self.connection.libvirt.virDomainAttachDeviceFlags);
        // SAFETY: the domain and the text are valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), xml.as_ptr(), flags) })
    }

    /// `flags` are virDomainDeviceModifyFlags.
    pub(crate) fn detach(&self, alias: &str, flags: c_uint) -> Result<(), Failure> {
        let (alias, call) = (text(alias)?, self.connection.libvirt.virDomainDetachDeviceAlias);
        // SAFETY: the domain and the text are valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), alias.as_ptr(), flags) })
    }

    /// `flags` are virDomainDeviceModifyFlags.
    pub(crate) fn update(&self, xml: &str, flags: c_uint) -> Result<(), Failure> {
        let (xml, call) = (text(xml)?, self.connection.libvirt.virDomainUpdateDeviceFlags);
        // SAFETY: the domain and the text are valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), xml.as_ptr(), flags) })
    }

    /// `flags` are virDomainVcpuFlags.
    pub(crate) fn set_processors(&self, count: c_uint, flags: c_uint) -> Result<(), Failure> {
        let call = self.connection.libvirt.virDomainSetVcpusFlags;
        // SAFETY: the domain is valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), count, flags) })
    }

    /// Sets the size of the disk of this path. `flags` are virDomainBlockResizeFlags.
    pub(crate) fn resize(&self, path: &str, size: u64, flags: c_uint) -> Result<(), Failure> {
        let (path, call) = (text(path)?, self.connection.libvirt.virDomainBlockResize);
        // SAFETY: the domain and the text are valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), path.as_ptr(), size, flags) })
    }

    /// Writes the guest's memory into the file of this path. `format` is a virDomainCoreDumpFormat, `flags` are
    /// virDomainCoreDumpFlags.
    pub(crate) fn core_dump(&self, path: &str, format: c_uint, flags: c_uint) -> Result<(), Failure> {
        let (path, call) = (text(path)?, self.connection.libvirt.virDomainCoreDumpWithFormat);
        // SAFETY: the domain and the text are valid.
        self.connection.done(unsafe { call(self.object.as_ptr(), path.as_ptr(), format, flags) })
    }

    /// A command for QEMU's monitor, and its answer; both are JSON. It waits for what libvirt does with the domain.
    pub(crate) fn monitor(&self, command: &str) -> Result<String, Failure> {
        let (command, call) = (text(command)?, self.connection.qemu.virDomainQemuMonitorCommand);
        let mut answer = null_mut();
        // SAFETY: the domain and the text are valid; what is put into `answer` is ours to free.
        unsafe {
            self.connection.done(call(self.object.as_ptr(), command.as_ptr(), &raw mut answer, 0))?;
            self.connection.taken(answer)
        }
    }

    /// A command for the guest agent, and its answer, waited for so many seconds.
    pub(crate) fn agent(&self, command: &str, seconds: c_int) -> Result<String, Failure> {
        let command = text(command)?;
        let call = self.connection.qemu.virDomainQemuAgentCommand;
        // SAFETY: the domain and the text are valid; the answer is ours to free.
        unsafe {
            let answer = call(self.object.as_ptr(), command.as_ptr(), seconds, 0);
            self.connection.taken(answer)
        }
    }

    /// The screen: its type, and at most `most` bytes.
    pub(crate) fn screenshot(&self, most: usize) -> Result<(String, Vec<u8>), Failure> {
        let Connection { libvirt, object, .. } = self.connection;
        // SAFETY: the stream is used by this thread alone and freed here; bytes are put where there is room for them.
        unsafe {
            let stream = (libvirt.virStreamNew)(object.as_ptr(), 0);
            if stream.is_null() {
                return Err(last(libvirt));
            }
            let answer = (libvirt.virDomainScreenshot)(self.object.as_ptr(), stream, 0, 0);
            let picture = self.connection.taken(answer).and_then(|mime| {
                let mut picture = Vec::new();
                let mut block = vec![0_u8; 64 << 10];
                loop {
                    let count = (libvirt.virStreamRecv)(stream, block.as_mut_ptr().cast(), block.len());
                    match usize::try_from(count) {
                        Err(_) => return Err(last(libvirt)),
                        Ok(0) => return Ok((mime, picture)),
                        Ok(count) if picture.len() + count <= most => {
                            picture.extend_from_slice(&block[..count])
                        }
                        Ok(_) => return Err(Failure("the screenshot is too large".to_owned())),
                    }
                }
            });
            let end = if picture.is_ok() { libvirt.virStreamFinish } else { libvirt.virStreamAbort };
            end(stream);
            (libvirt.virStreamFree)(stream);
            picture
        }
    }
}

/// libvirt's error of the last call of this thread.
fn last(libvirt: &Libvirt) -> Failure {
    // SAFETY: the answer is null or a text that stays until the next call of this thread.
    Failure(unsafe { texted((libvirt.virGetLastErrorMessage)()) })
}

/// # Safety
/// It is null, or a text that ends with a zero.
unsafe fn texted(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Callers report errors; libvirt would print them too.
unsafe extern "C" fn silent(_opaque: Object, _error: Object) {}

type Lifecycle = unsafe extern "C" fn(Object, Object, c_int, c_int, Object);
type Plain = unsafe extern "C" fn(Object, Object, Object);
type Watchdog = unsafe extern "C" fn(Object, Object, c_int, Object);
type Removed = unsafe extern "C" fn(Object, Object, *const c_char, Object);
type MemorySize = unsafe extern "C" fn(Object, Object, *const c_char, c_ulonglong, Object);
type IoError =
    unsafe extern "C" fn(Object, Object, *const c_char, *const c_char, c_int, *const c_char, Object);

type MonitorEvent =
    unsafe extern "C" fn(Object, Object, *const c_char, libc::c_longlong, c_uint, *const c_char, Object);

/// # Safety
/// `opaque` is the sender that the callback was registered with.
unsafe fn send_notice(opaque: Object, notice: Notice) {
    // SAFETY: as above; the sender is never freed, and senders may be used by any number of threads.
    let sender = unsafe { &*opaque.cast::<Sender<Notice>>() };
    // The receiver is gone when the worker ends.
    _ = sender.send(notice);
}

unsafe extern "C" fn on_lifecycle(_: Object, _: Object, event: c_int, detail: c_int, opaque: Object) {
    // SAFETY: registered with the sender.
    unsafe { send_notice(opaque, Notice::Lifecycle { event, detail }) }
}

unsafe extern "C" fn on_reboot(_: Object, _: Object, opaque: Object) {
    // SAFETY: registered with the sender.
    unsafe { send_notice(opaque, Notice::Rebooted) }
}

unsafe extern "C" fn on_watchdog(_: Object, _: Object, _action: c_int, opaque: Object) {
    // SAFETY: registered with the sender.
    unsafe { send_notice(opaque, Notice::Watchdog) }
}

unsafe extern "C" fn on_io_error(
    _: Object,
    _: Object,
    _path: *const c_char,
    disk: *const c_char,
    _action: c_int,
    reason: *const c_char,
    opaque: Object,
) {
    // SAFETY: registered with the sender; libvirt's texts end with a zero.
    unsafe { send_notice(opaque, Notice::IoError { disk: texted(disk), reason: texted(reason) }) }
}

unsafe extern "C" fn on_removed(_: Object, _: Object, device: *const c_char, opaque: Object) {
    // SAFETY: registered with the sender; libvirt's texts end with a zero.
    unsafe { send_notice(opaque, Notice::Removed { device: texted(device) }) }
}

unsafe extern "C" fn on_added(_: Object, _: Object, _device: *const c_char, opaque: Object) {
    // SAFETY: registered with the sender.
    unsafe { send_notice(opaque, Notice::Changed) }
}

unsafe extern "C" fn on_memory(
    _: Object,
    _: Object,
    _device: *const c_char,
    _size: c_ulonglong,
    opaque: Object,
) {
    // SAFETY: registered with the sender.
    unsafe { send_notice(opaque, Notice::Changed) }
}

unsafe extern "C" fn on_agent(_: Object, _: Object, state: c_int, _reason: c_int, opaque: Object) {
    // SAFETY: registered with the sender.
    unsafe { send_notice(opaque, Notice::Agent { connected: state == 1 }) }
}

unsafe extern "C" fn on_shutdown(
    _: Object,
    _: Object,
    _event: *const c_char,
    _seconds: libc::c_longlong,
    _micros: c_uint,
    details: *const c_char,
    opaque: Object,
) {
    // SAFETY: registered with the sender; libvirt's texts end with a zero.
    unsafe { send_notice(opaque, Notice::SwitchingOff { details: texted(details) }) }
}
