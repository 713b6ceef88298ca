//! The words of the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

const LAUNCHER_EXAMPLES: &str = "\
Examples:
  virt-launcher capabilities /var/lib/ferrovirt/capabilities
  virt-launcher run --capabilities /var/lib/ferrovirt/capabilities /run/ferrovirt/mine
  virt-launcher run /var/run/kubevirt-private --pod --name mine --namespace default --uid UUID
  virt-launcher ask /run/ferrovirt/mine launch launch.json
  virt-launcher ask /run/ferrovirt/mine status
  virt-launcher domain launch.json
  virt-launcher domain --layout - < launch.json
  virt-launcher media launch.json /tmp/media

Exit codes: 0 done, 1 the launch document or the request is refused, 2 wrong usage, 3 the system refused something.
run: 0 the guest switched itself off or was killed as asked, 1 it crashed or ended unseen.";

/// The process of one guest.
#[derive(Debug, Parser)]
#[command(name = "virt-launcher", version, after_help = LAUNCHER_EXAMPLES)]
pub(crate) struct Launcher {
    #[command(subcommand)]
    pub(crate) command: LauncherCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LauncherCommand {
    /// Runs one guest to its end, once it is launched through the socket in the folder. Started by root it runs as the
    /// user of `--user`. SIGTERM switches the guest off as its power button does, and kills it when its grace is over.
    Run {
        /// The run's folder, at most 52 bytes long: socket, libvirt's state, the record of the end.
        folder: PathBuf,
        /// Folder that `capabilities` filled; without it, or when it knows nothing, the start takes seconds longer.
        #[arg(long, value_name = "FOLDER")]
        capabilities: Option<PathBuf>,
        /// Started by root: the user to run as, with the group of the same number.
        #[arg(long, value_name = "UID", default_value_t = api::names::QEMU_ID)]
        user: u32,
        /// Started by root: a further group of that user, such as that of /dev/kvm. Repeatable.
        #[arg(long = "group", value_name = "GID")]
        groups: Vec<u32>,
        #[command(flatten)]
        pod: Pod,
    },
    /// Finds out what this machine's QEMU and libvirt can do, once for all guests' starts.
    Capabilities {
        /// Where to keep it.
        cache: PathBuf,
    },
    /// Asks a launcher that runs, and prints its answer as JSON.
    Ask {
        /// The run's folder.
        folder: PathBuf,
        #[command(subcommand)]
        request: ClientCommand,
    },
    /// The second process of `run`.
    #[command(hide = true)]
    Worker {
        folder: PathBuf,
        #[arg(long)]
        stop: bool,
    },
    /// The part of `capabilities` that runs as the guests' user.
    #[command(hide = true)]
    Probe { folder: PathBuf, emulator: String },
    /// Print the libvirt XML of a launch document.
    Domain {
        /// File with a launch document; - is standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print where devices are (JSON), not the domain (XML).
        #[arg(long)]
        layout: bool,
    },
    /// Makes the CDs of a launch document (cloud-init's, Secrets', …) as NAME.iso in a folder.
    Media {
        /// File with a launch document; - is standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The folder; what has such a name there is replaced.
        folder: PathBuf,
    },
}

/// A launcher pod.
#[derive(Debug, clap::Args)]
pub(crate) struct Pod {
    /// Run in a launcher pod: keep its user, who must not be root, and its cgroup, and write QEMU's log below
    /// libvirt/qemu/log of the directory.
    #[arg(long)]
    pub(crate) pod: bool,
    /// Name of the VirtualMachineInstance, shown in process lists.
    #[arg(long, requires = "pod")]
    pub(crate) name: Option<String>,
    /// Its namespace, shown in process lists.
    #[arg(long, requires = "pod")]
    pub(crate) namespace: Option<String>,
    /// UUID of the VirtualMachineInstance: launch documents of others are refused.
    #[arg(long, requires = "pod")]
    pub(crate) uid: Option<String>,
}

/// Requests to a launcher.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Start the guest of a launch document.
    Launch {
        /// File with the launch document; - is standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// How the guest is.
    Status,
    /// Print what happens, one JSON object a line, until the guest's end.
    Watch,
    /// Stop its processors.
    Pause,
    /// Let them run again.
    Unpause,
    /// Press the power button, and kill the guest when the grace is over.
    Shutdown {
        /// Seconds; without it the launch document's.
        #[arg(long, value_name = "SECONDS")]
        grace_period: Option<u64>,
    },
    /// End it at once.
    Kill,
    /// Ask the guest to reboot.
    SoftReboot,
    /// Press the reset button.
    Reset,
    /// Give it one more disk: `disks`' entry of a launch document.
    AttachDisk {
        /// File with the disk as JSON; - is standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Take a disk away; the guest lets go of it in its time.
    DetachDisk {
        /// Its name.
        name: String,
    },
    /// Make a disk larger.
    ResizeDisk {
        /// Its name.
        name: String,
        /// Bytes, a multiple of 512.
        size: u64,
    },
    /// Give it processors and memory, where it has less.
    Grow {
        /// Processors, whole sockets of them.
        processors: u32,
        /// Bytes of memory, more than at the start by a multiple of 2 MiB.
        memory: u64,
    },
    /// Give it one more network interface: `interfaces`' entry of a launch document.
    AttachInterface {
        /// File with the interface as JSON; - is standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Take an interface away; the guest lets go of it in its time.
    DetachInterface {
        /// Its name.
        name: String,
    },
    /// A command for the guest agent.
    Agent {
        /// The command, as JSON.
        command: String,
        /// Seconds to wait for it.
        #[arg(long, default_value_t = 10)]
        timeout: u32,
    },
    /// Find for the guest, as the user that it runs as: QEMU, firmware, whether KVM works and why not.
    Facts {
        /// Disks: whether they can be opened past the page cache.
        paths: Vec<String>,
    },
    /// The screen.
    Screenshot {
        /// File to write it to.
        file: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_finds_no_fault() {
        Launcher::command().debug_assert();
    }
}
