//! The disks of a guest in its launcher pod: claims are opened and checked, images of containerDisks are shown to the
//! launcher, overlays and empty disks are made. Each step finds what an earlier start made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::process::Command;

use api::kubevirt::{ClaimInfo, VirtualMachineInstance, Volume};
use api::launch::{DiskFormat, Storage};
use api::names::QEMU_ID;
use dir::{Dir, Owner};
use rustix::fs::{AtFlags, OFlags};
use virt::live::is_hotpluggable;
use virt::pod as place;
use virt::resolve::{Backend, claim_of, is_storage};
use virt::size;

use super::pod::Pod;
use super::qcow2::{self, Image};
use crate::error::{Error, Kind, Result};
use crate::pods::disk::Disk;
use crate::pods::mount::Access;
use crate::pods::process::{self, Process, Root};
use crate::pods::{PodDirectory, devices, mount};

/// The emptyDir of overlays and empty disks.
const EPHEMERAL: &str = "ephemeral-disks";

/// Attachment pods that run, by the volumes that they hold: the pod's uid and the id of its container.
pub(crate) type Attachments = BTreeMap<String, (String, String)>;

/// All volumes that are files or devices, by name, as the launcher sees them. `launcher` is its first process.
///
/// # Errors
/// A volume's disk is missing, or is not a disk. [`Kind::Launcher`]: a volume that comes and goes is not attached to the
/// node yet.
pub(crate) fn of(
    instance: &VirtualMachineInstance,
    directory: &PodDirectory,
    pod: &Pod,
    attachments: &Attachments,
    launcher: &Process,
) -> Result<BTreeMap<String, Backend>> {
    let reported = instance.status.iter().flat_map(|status| &status.volume_status);
    let claims =
        reported.filter_map(|one| Some((one.name.as_str(), one.persistent_volume_claim_info.as_ref()?)));
    let disks = Disks { directory, pod, launcher, claims: claims.collect() };
    let mut backends = BTreeMap::new();
    for (index, volume) in instance.spec.volumes.iter().enumerate().filter(|(_, volume)| is_storage(volume)) {
        let backend = match is_hotpluggable(volume) {
            true => {
                attached(&volume.name, disks.claims.get(volume.name.as_str()).copied(), attachments, launcher)
            }
            false => disks.of(index, volume),
        };
        let named =
            |error: Error| error.context(format!("volume {:?} of the guest cannot be used", volume.name));
        backends.insert(volume.name.clone(), backend.map_err(named)?);
    }
    Ok(backends)
}

/// Shows the kernel that the guest is started with to the launcher, and its first filesystem.
///
/// # Errors
/// The image has no such files.
pub(crate) fn kernel(
    instance: &VirtualMachineInstance,
    directory: &PodDirectory,
    pod: &Pod,
    launcher: &Process,
) -> Result<()> {
    let boot = instance.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
    let Some(asked) = boot.and_then(|boot| boot.container.as_ref()) else { return Ok(()) };
    let (holder, image) = image(place::KERNEL_VOLUME, directory, pod, launcher)?;
    let holder = holder.as_ref().unwrap_or(launcher);
    for (path, name) in [(&asked.kernel_path, place::KERNEL), (&asked.initrd_path, place::INITRD)] {
        let Some(path) = path else { continue };
        let named = |error: Error| error.context(format!("{path} of {} cannot be used", asked.image));
        let file = mount::container_disk(&image, Some(path)).map_err(named)?;
        mount::show(&file, Access::Read, holder, launcher, place::CONTAINER_DISKS, name)?;
    }
    Ok(())
}

/// The image of a volume, and the process of the container that keeps it open; without one the kubelet mounted the image
/// into the launcher's container.
fn image(
    volume: &str,
    directory: &PodDirectory,
    pod: &Pod,
    launcher: &Process,
) -> Result<(Option<Process>, Root)> {
    let container = place::image_container(volume);
    if !pod.container_names.contains(&container) {
        return Ok((None, launcher.root()?.at(&place::image_directory(volume))?));
    }
    let id = pod.containers.get(&container).ok_or_else(|| {
        Error::new(Kind::Launcher, format!("container {container} of pod {} does not run", pod.name))
    })?;
    let holder = process::of_container(id, directory.uid())?;
    let root = holder.root()?;
    Ok((Some(holder), root))
}

/// The disk of a volume that comes and goes, shown to the launcher. `claim`: what the operator reports of its claim.
///
/// # Errors
/// As [`of`].
pub(crate) fn attached(
    name: &str,
    claim: Option<&ClaimInfo>,
    attachments: &Attachments,
    launcher: &Process,
) -> Result<Backend> {
    let (path, file) = (place::hotplugged(name), place::hotplugged_file(name));
    if mount::find(launcher, place::HOTPLUG, &file)?.is_none() {
        let holder = attachment(name, attachments)?;
        let disk = held(name, claim, &holder)?;
        // A device that cannot be permitted is not shown either: nothing of it has to be taken back.
        if disk.block {
            devices::permit(launcher, &disk)?;
        }
        mount::show(&disk, Access::Write, &holder, launcher, place::HOTPLUG, &file)?;
    }
    let disk = mount::find(launcher, place::HOTPLUG, &file)?;
    let disk = disk.ok_or_else(|| Error::new(Kind::System, format!("{path} was removed")))?;
    if disk.block {
        devices::permit(launcher, &disk)?;
    }
    let direct = disk.open(true).is_ok();
    Ok(backend(path, disk.block, raw(size(&disk)?), direct))
}

/// Makes sure that the launcher may still open a volume that is a block device: the container runtime and systemd replace
/// the rules of its container.
///
/// # Errors
/// The system refuses.
pub(crate) fn permitted(name: &str, launcher: &Process) -> Result<()> {
    match mount::find(launcher, place::HOTPLUG, &place::hotplugged_file(name))? {
        Some(disk) if disk.block => devices::permit(launcher, &disk),
        Some(_) | None => Ok(()),
    }
}

/// Shows a file on the claim of a volume to the launcher, which writes a dump into it. It is made where it is missing.
///
/// # Errors
/// As [`of`].
pub(crate) fn shown_for_dump(
    name: &str,
    file: &str,
    attachments: &Attachments,
    launcher: &Process,
) -> Result<()> {
    if mount::find(launcher, place::HOTPLUG, file)?.is_some() {
        return Ok(());
    }
    let holder = attachment(name, attachments)?;
    let directory = holder.directory(&place::attached_directory(name))?;
    if directory.stat(file)?.is_none() {
        let new = directory.create_new(file, 0o660)?;
        Owner::same(QEMU_ID)
            .give(&new)
            .map_err(|error| Error::system(format!("cannot give {file} to the guest's user"), error))?;
    }
    let missing = || Error::new(Kind::System, format!("{file} was removed"));
    let found = Disk::find(&directory, file)?.ok_or_else(missing)?;
    if found.block {
        return Err(Error::new(Kind::Untrusted, format!("{file} is a block device")));
    }
    mount::show(&found, Access::Write, &holder, launcher, place::HOTPLUG, file)
}

/// Takes a file away from the launcher that was shown to it for a dump.
///
/// # Errors
/// The system refuses.
pub(crate) fn hidden(file: &str, launcher: &Process) -> Result<()> {
    mount::hide(launcher, place::HOTPLUG, file)
}

/// A process of the attachment pod that holds a volume.
fn attachment(name: &str, attachments: &Attachments) -> Result<Process> {
    let (pod, container) = attachments.get(name).ok_or_else(|| {
        Error::new(Kind::Launcher, format!("volume {name:?} is not attached to the node yet"))
    })?;
    process::of_container(container, pod)
}

/// Takes the disk of a volume away from the launcher; the guest must have let go of it.
///
/// # Errors
/// The system refuses.
pub(crate) fn detached(name: &str, launcher: &Process) -> Result<()> {
    let file = place::hotplugged_file(name);
    if let Some(disk) = mount::find(launcher, place::HOTPLUG, &file)?
        && disk.block
    {
        devices::forbid(launcher, &disk)?;
    }
    mount::hide(launcher, place::HOTPLUG, &file)
}

/// The disk of the claim that an attachment pod holds.
fn held(name: &str, claim: Option<&ClaimInfo>, holder: &Process) -> Result<Disk> {
    let device = place::attached_device(name);
    if let Ok(handle) = holder.file(&device) {
        let disk = Disk::of(handle, device.as_ref())?;
        return match disk.block {
            true => Ok(disk),
            false => Err(Error::new(Kind::Untrusted, format!("{device} is not a block device"))),
        };
    }
    let directory = holder.directory(&place::attached_directory(name))?;
    let disk = match Disk::find(&directory, "disk.img")? {
        Some(disk) => disk,
        None => {
            blank(&directory, claim)?;
            let missing = || Error::new(Kind::System, "disk.img was removed");
            Disk::find(&directory, "disk.img")?.ok_or_else(missing)?
        }
    };
    match disk.block {
        true => Err(Error::new(Kind::Untrusted, "disk.img is a block device")),
        false => Ok(disk),
    }
}

struct Disks<'a> {
    directory: &'a PodDirectory,
    pod: &'a Pod,
    launcher: &'a Process,
    /// Claims as the operator reports them, by volume.
    claims: BTreeMap<&'a str, &'a ClaimInfo>,
}

fn backend(path: String, block: bool, image: Image, direct: bool) -> Backend {
    let storage = Storage { path, block, format: image.format, backing: None };
    Backend { storage, direct, preallocated: false, block_sizes: None }
}

fn raw(size: u64) -> Image {
    Image { format: DiskFormat::Raw, size }
}

impl Disks<'_> {
    fn of(&self, index: usize, volume: &Volume) -> Result<Backend> {
        if claim_of(volume).is_some() {
            return self.claim(&volume.name).map(|(backend, _)| backend);
        }
        if let Some(container) = &volume.container_disk {
            let below = self.container(index, &volume.name, container.path.as_deref())?;
            return self.overlay(&volume.name, below);
        }
        if let Some(empty) = &volume.empty_disk {
            let size = empty.capacity.as_ref().map_or(Ok(0), |capacity| capacity.bytes());
            let size =
                size.map_err(|error| Error::with(Kind::Content, "its emptyDisk.capacity is invalid", error))?;
            return self.make(&volume.name, size, None);
        }
        if volume.ephemeral.is_some() {
            let below = self.claim(&volume.name)?;
            return self.overlay(&volume.name, below);
        }
        Err(Error::new(Kind::Content, "its source is not supported in a cluster"))
    }

    /// The disk of a claim, and its bytes: a block device, or the file disk.img, which is made where it is missing.
    fn claim(&self, name: &str) -> Result<(Backend, u64)> {
        let info = self.claims.get(name).copied();
        let preallocated = info.is_some_and(|info| info.preallocated == Some(true));
        let backend = |path: String, block: bool, image: Image, direct: bool| Backend {
            preallocated,
            ..backend(path, block, image, direct)
        };
        let disk = match placed(name, self.launcher)? {
            Some(disk) => disk,
            None => {
                blank(&self.launcher.directory(&place::claim_directory(name))?, info)?;
                let missing = || Error::new(Kind::System, format!("{} was removed", place::claim_file(name)));
                placed(name, self.launcher)?.ok_or_else(missing)?
            }
        };
        let path = if disk.block { place::claim_device(name) } else { place::claim_file(name) };
        let direct = disk.open(true).is_ok();
        let size = size(&disk)?;
        Ok((backend(path, disk.block, raw(size), direct), size))
    }

    /// The image of a containerDisk, shown to the launcher, and how large a guest sees it.
    fn container(&self, index: usize, name: &str, path: Option<&str>) -> Result<(Backend, u64)> {
        let (holder, image) = image(name, self.directory, self.pod, self.launcher)?;
        let holder = holder.as_ref().unwrap_or(self.launcher);
        let disk = mount::container_disk(&image, path)?;
        let mut file =
            disk.open(false).map_err(|error| Error::system("cannot open the image's disk", error))?;
        let image = judged(&mut file)?;
        mount::show(
            &disk,
            Access::Read,
            holder,
            self.launcher,
            place::CONTAINER_DISKS,
            &place::container_disk_file(index),
        )?;
        let size = image.size;
        Ok((backend(place::container_disk(index), false, image, false), size))
    }

    /// A disk that takes what is written in place of one that stays as it is.
    fn overlay(&self, name: &str, (below, size): (Backend, u64)) -> Result<Backend> {
        self.make(name, size, Some(below.storage))
    }

    /// A qcow2 image in the pod's emptyDir, with the guests' user as its owner.
    fn make(&self, name: &str, size: u64, below: Option<Storage>) -> Result<Backend> {
        let directory = self.directory.need_empty_dir(EPHEMERAL)?;
        let path = place::ephemeral(name);
        let file = format!("{name}.qcow2");
        if directory.file(&file, OFlags::RDONLY)?.is_none() {
            // A file left by an interrupted start is incomplete.
            let partial = format!(".{name}.new");
            if directory.stat(&partial)?.is_some() {
                directory.unlink(&partial)?;
            }
            let new = directory.create_new(&partial, 0o600)?;
            format(&new, size, below.as_ref())?;
            Owner::same(QEMU_ID)
                .give(&new)
                .map_err(|error| Error::system(format!("cannot give {path} to the guest's user"), error))?;
            if !directory.rename_new(&partial, &directory, &file)? {
                return Err(Error::new(
                    Kind::System,
                    format!("{path} is not a file of this agent; remove it"),
                ));
            }
        }
        let mut made = backend(path, false, Image { format: DiskFormat::Qcow2, size }, false);
        made.storage.backing = below.map(Box::new);
        Ok(made)
    }
}

/// The disk of a claim in the launcher's container: a block device, or the file disk.img; `None`: that is missing.
fn placed(name: &str, launcher: &Process) -> Result<Option<Disk>> {
    let device = place::claim_device(name);
    if let Ok(handle) = launcher.file(&device) {
        let disk = Disk::of(handle, device.as_ref())?;
        return match disk.block {
            true => Ok(Some(disk)),
            false => Err(Error::new(Kind::Untrusted, format!("{device} is not a block device"))),
        };
    }
    match Disk::find(&launcher.directory(&place::claim_directory(name))?, "disk.img")? {
        Some(disk) if disk.block => {
            Err(Error::new(Kind::Untrusted, format!("{} is a block device", place::claim_file(name))))
        }
        found => Ok(found),
    }
}

/// Whether the disk of a claim is a block device, and its bytes, while the guest runs; `None`: the launcher has no such
/// disk.
///
/// # Errors
/// It is not a disk, or the system refuses.
pub(crate) fn length(name: &str, hotpluggable: bool, launcher: &Process) -> Result<Option<(bool, u64)>> {
    let disk = match hotpluggable {
        true => mount::find(launcher, place::HOTPLUG, &place::hotplugged_file(name))?,
        false => placed(name, launcher)?,
    };
    disk.map(|disk| Ok((disk.block, size(&disk)?))).transpose()
}

/// Bytes of a file or device.
fn size(disk: &Disk) -> Result<u64> {
    let failed = |error: std::io::Error| Error::system("cannot open a claim's disk", error);
    let mut file = disk.open(false).map_err(|error| failed(error.into()))?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(failed)
}

/// The format of an image, by its header.
fn judged(file: &mut File) -> Result<Image> {
    let failed = |error: std::io::Error| Error::system("cannot read the image's disk", error);
    let length = file.metadata().map_err(failed)?.len();
    let mut head = Vec::new();
    file.take(u64::try_from(qcow2::HEAD).unwrap_or(0)).read_to_end(&mut head).map_err(failed)?;
    qcow2::judge(&head, length)
        .map_err(|why| Error::new(Kind::Content, format!("the image's disk is refused: {why}")))
}

/// Has qemu-img write an empty qcow2 image into an open file. `below` is named and not opened: it exists in the launcher's
/// container alone.
fn format(file: &File, size: u64, below: Option<&Storage>) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]);
    if let Some(below) = below {
        let format = match (below.block, below.format) {
            (true, _) => "host_device",
            (false, DiskFormat::Raw) => "raw",
            (false, DiskFormat::Qcow2) => "qcow2",
        };
        command.args(["-u", "-F", format, "-b", &below.path]);
    }
    command.arg(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())).arg(size.to_string());
    let output = command.output().map_err(|error| Error::system("cannot run qemu-img", error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::new(Kind::System, format!("qemu-img: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Makes the disk of a claim that holds none: sparse, of the size that was requested without the filesystem's overhead.
fn blank(directory: &Dir, info: Option<&ClaimInfo>) -> Result<()> {
    let path = directory.path_of("disk.img");
    let failed = |error: std::io::Error| Error::system(format!("cannot make {}", path.display()), error);
    let facts = rustix::fs::fstatvfs(directory).map_err(|error| failed(error.into()))?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    let size = size::of_new_disk(info.unwrap_or(&ClaimInfo::default()), free)
        .map_err(|why| Error::new(Kind::Content, format!("{} cannot be made: {why}", path.display())))?;
    let file = directory.create_new(".disk.img.new", 0o660).or_else(|error| {
        // Left by a start that was cut short.
        directory.unlink(".disk.img.new")?;
        directory.create_new(".disk.img.new", 0o660).map_err(|_| error)
    })?;
    file.set_len(size).map_err(failed)?;
    Owner::same(QEMU_ID).give(&file).map_err(failed)?;
    directory.rename_new(".disk.img.new", directory, "disk.img")?;
    Ok(())
}

/// Gives the guests' user a device of the launcher's container, such as `/dev/kvm`: the node is the container's own.
///
/// # Errors
/// It is not there, or is not a device.
pub(crate) fn give_device(launcher: &Process, path: &str) -> Result<()> {
    let handle = launcher.file(path)?;
    if crate::pods::disk::file_type(&handle, path.as_ref())? != rustix::fs::FileType::CharacterDevice {
        let text = format!("{path} in the launcher's container is not a device");
        return Err(Error::new(Kind::Untrusted, text));
    }
    let user = Some(rustix::fs::Uid::from_raw(QEMU_ID));
    rustix::fs::chownat(&handle, c"", user, None, AtFlags::EMPTY_PATH)
        .map_err(|error| Error::system(format!("cannot give the launcher its {path}"), error))
}
