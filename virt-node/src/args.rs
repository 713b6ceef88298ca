//! The command line of `virt-node`. Not here: commands for a cluster (`virt_client`), and the effect of each (`command`).

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use virt_client::port::Forwarded;
use virt_client::ssh::{Copy as ScpCopy, Options as SshOptions};

use crate::command::{ImageUpload, Login, Named, Output};
use crate::format::Format;

const EXAMPLES: &str = "\
Examples:
  virt-node run vm.yaml
  virt-node run vm.yaml --detach
  virt-node apply vm.yaml
  virt-node list
  virt-node console mine
  virt-node port-forward mine 8080:80
  virt-node ssh root@mine
  virt-node scp notes.txt root@mine:/root
  virt-node image-upload dv disk --size 10Gi --image-path disk.qcow2
  virt-node get mine -o yaml
  virt-node stop mine
  virt-node delete mine
  virt-node validate vm.yaml
  virt-node validate --all --output json vm.yaml networks.yaml
  kubectl get vm mine -o yaml | virt-node validate -
  virt-node check
  virt-node check --output json
  virt-node --kubeconfig ~/.kube/config console mine
  virt-node cluster start mine

With --kubeconfig or --context, or after the word cluster, the command goes to a Kubernetes cluster, with virtctl's verbs:
virt-node cluster --help lists them. The program does the same when it is called kubectl-virt (kubectl virt …).

Exit codes: 0 good, 1 errors in the documents, no such object, or something needed is missing, 2 wrong usage, 3 the system
refused something.";

/// Virtual machines on one machine, from the YAML that KubeVirt takes.
#[derive(Debug, Parser)]
#[command(name = "virt-node", version, after_help = EXAMPLES)]
pub(crate) struct Node {
    /// Folder for guests' state: one daemon serves it.
    #[arg(long, global = true, value_name = "FOLDER", default_value = crate::daemon::DEFAULT)]
    pub(crate) state: PathBuf,
    /// Namespace of the objects that are named.
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig file: the command goes to this cluster instead of this machine.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig: the command goes to this cluster instead of this machine.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    #[command(subcommand)]
    pub(crate) command: NodeCommand,
}

/// The accelerator of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AcceleratorArg {
    /// The processor where that works, tried once in a boot; else software.
    Auto,
    /// The processor.
    Kvm,
    /// Software.
    Tcg,
}

/// Settings of a daemon for all guests.
#[derive(Debug, Args)]
pub(crate) struct Serving {
    /// Accelerator of guests.
    #[arg(long, value_enum, default_value_t = AcceleratorArg::Auto)]
    pub(crate) accelerator: AcceleratorArg,
    /// Subnet of guests that name no network. Default: the first of four that no route of this machine overlaps.
    #[arg(long, value_name = "CIDR")]
    pub(crate) pod_network: Option<ipnet::Ipv4Net>,
    /// The same of IPv6. Default: they have no IPv6.
    #[arg(long, value_name = "CIDR")]
    pub(crate) pod_network6: Option<ipnet::Ipv6Net>,
    /// Directory of files and devices that guests may use as hostDisk. Repeatable. Default: none.
    #[arg(long, value_name = "DIR")]
    pub(crate) host_disk: Vec<PathBuf>,
}

impl Serving {
    /// The same as it is typed.
    pub(crate) fn words(&self) -> Vec<String> {
        let Self { accelerator, pod_network, pod_network6, host_disk } = self;
        let accelerator = match accelerator {
            AcceleratorArg::Auto => None,
            AcceleratorArg::Kvm => Some("kvm".to_owned()),
            AcceleratorArg::Tcg => Some("tcg".to_owned()),
        };
        let all = [
            ("accelerator", accelerator),
            ("pod-network", pod_network.map(|subnet| subnet.to_string())),
            ("pod-network6", pod_network6.map(|subnet| subnet.to_string())),
        ];
        let all = all.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
        all.chain(host_disk.iter().map(|directory| format!("--host-disk={}", directory.display()))).collect()
    }
}

/// Which guest.
#[derive(Debug, Args)]
pub(crate) struct OfGuest {
    /// Its name.
    pub(crate) name: String,
}

/// How soon a guest is killed that does not end.
#[derive(Clone, Debug, Args)]
pub(crate) struct Grace {
    /// Seconds from now until the guest is killed. Default: the guest's own.
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u64>,
    /// Kill it at once: --grace-period 0.
    #[arg(long, conflicts_with = "grace_period")]
    force: bool,
}

impl Grace {
    pub(crate) fn seconds(&self) -> Option<u64> {
        if self.force { Some(0) } else { self.grace_period }
    }
}

/// A volume that comes: virtctl's flags.
#[derive(Clone, Debug, Args)]
pub(crate) struct MoreVolume {
    /// The DataVolume or PersistentVolumeClaim.
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_name: String,
    /// Name of the disk in the VM. Default: the volume's name.
    #[arg(long, value_name = "NAME")]
    pub(crate) disk_name: Option<String>,
    /// Serial number that the guest reads. Default: what the machine calls it.
    #[arg(long)]
    pub(crate) serial: Option<String>,
    /// The host's page cache.
    #[arg(long, value_parser = ["none", "writethrough", "writeback"])]
    pub(crate) cache: Option<String>,
    /// Kind of device in the guest; lun: a block device that is passed through.
    #[arg(long, value_enum, default_value_t = DiskType::Disk)]
    pub(crate) disk_type: DiskType,
    /// Bus of the device: scsi, or virtio for a disk.
    #[arg(long, value_parser = ["scsi", "virtio"], default_value = "scsi")]
    pub(crate) bus: String,
    /// No effect: it is always kept with the machine.
    #[arg(long, hide = true)]
    pub(crate) persist: bool,
    /// Check whether it is possible, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The kind of device that a volume becomes in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskType {
    /// A disk.
    Disk,
    /// A SCSI device that is passed through.
    Lun,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Run a virtctl command against the Kubernetes cluster of KUBECONFIG or --kubeconfig.
    #[command(disable_help_flag = true)]
    Cluster {
        /// The verb and its arguments; --help lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "VERB")]
        words: Vec<std::ffi::OsString>,
    },
    /// Keeps the objects of documents, all or none, and starts their guests, one that is halted for once: VirtualMachine, VirtualMachineInstance, DataVolume,
    /// PersistentVolumeClaim, NetworkAttachmentDefinition, Secret, ConfigMap. Shows each step until the guests have ended;
    /// Ctrl-C shuts them down.
    Run {
        /// Files with YAML or JSON documents; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Return when the guests run; at once where there are volumes only, which else are waited for.
        #[arg(long, conflicts_with = "console")]
        detach: bool,
        /// Join the first guest's console when it runs.
        #[arg(long)]
        console: bool,
    },
    /// Keeps the objects of documents, all or none. Whether a guest starts is up to its runStrategy.
    Apply {
        /// Files with YAML or JSON documents; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Serves until it is ended: the one daemon of a state folder, which run and systemd start. Guests go on without it.
    Serve {
        #[command(flatten)]
        serving: Serving,
        /// Leave the session and the terminal that started it.
        #[arg(long, hide = true)]
        detached: bool,
    },
    /// Install the daemon of the state directory as a systemd service, started now and at every boot. Repeated with other
    /// options: systemd restarts it with those, and guests keep running.
    InstallService {
        #[command(flatten)]
        serving: Serving,
        /// Print the unit, and change nothing.
        #[arg(long, visible_alias = "dry-run")]
        print: bool,
    },
    /// Machines and volumes, and how they are.
    List {
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// An object as it is kept; a machine with its run.
    Get {
        /// NAME of a machine, or KIND/NAME: vm, vmi, dv, pvc, secret, cm, net-attach-def.
        object: Named,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
        output: Output,
    },
    /// Show the events.
    Events {
        /// To this machine or volume; without it: to all of the namespace.
        name: Option<String>,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Attach to the guest's serial console (Ctrl-] to detach). Replaces an existing session.
    Console(OfGuest),
    /// Offers a guest's screen at a port of this machine.
    Vnc {
        #[command(flatten)]
        of: OfGuest,
        /// The port; without it a free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// Has ports of this machine lead to a guest's, until Ctrl-C.
    PortForward {
        /// The guest: NAME, vm/NAME or vmi/NAME.
        object: Named,
        /// [PROTOCOL/]LOCAL[:GUEST], such as 8080:80 or udp/5353:53; LOCAL 0 is a free one.
        #[arg(required = true, value_name = "PORT")]
        ports: Vec<Forwarded>,
        /// The address here.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
        address: IpAddr,
        /// Join the guest's port with standard input and output, as ssh's ProxyCommand; of one port the guest's counts.
        #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false,
              default_missing_value = "true", action = ArgAction::Set)]
        stdio: bool,
    },
    /// Logs in to a guest by this machine's ssh.
    Ssh {
        /// The guest: [USER@]NAME, vm/NAME or vmi/NAME.
        login: Login,
        #[command(flatten)]
        options: SshOptions,
        /// Command to run there instead of a shell.
        #[arg(short, long)]
        command: Option<String>,
    },
    /// Copies files to or from a guest by this machine's scp.
    Scp {
        #[command(flatten)]
        copy: ScpCopy,
        #[command(flatten)]
        options: SshOptions,
    },
    /// Starts a machine.
    Start {
        #[command(flatten)]
        of: OfGuest,
        /// Make the guest, and do not let it run before unpause.
        #[arg(long)]
        paused: bool,
    },
    /// Stops a machine: presses its power button, and kills it when its grace is over.
    Stop {
        #[command(flatten)]
        of: OfGuest,
        #[command(flatten)]
        grace: Grace,
    },
    /// Stops a machine and starts it again.
    Restart {
        #[command(flatten)]
        of: OfGuest,
        #[command(flatten)]
        grace: Grace,
    },
    /// Stops a guest's processors.
    Pause(OfGuest),
    /// Lets a guest's processors run again.
    Unpause(OfGuest),
    /// Asks the guest to reboot.
    SoftReboot(OfGuest),
    /// Presses the reset button.
    Reset(OfGuest),
    /// Gives a machine one more volume, at once where it runs, and at its next starts.
    #[command(name = "addvolume")]
    AddVolume {
        #[command(flatten)]
        of: OfGuest,
        #[command(flatten)]
        volume: MoreVolume,
    },
    /// Takes a volume away that addvolume gave, or that the machine's template calls hotpluggable.
    #[command(name = "removevolume")]
    RemoveVolume {
        #[command(flatten)]
        of: OfGuest,
        /// Its name in the machine.
        #[arg(long, value_name = "NAME")]
        volume_name: String,
        /// No effect: it is always taken from the machine too.
        #[arg(long, hide = true)]
        persist: bool,
        /// Check whether it is possible, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Sends a disk image, or an archive, into a DataVolume, which is made where there is none, and waits until it is there.
    ImageUpload(ImageUpload),
    /// Takes objects away, with what belongs to them: a machine's run, its volumes, all of its state.
    Delete {
        /// NAME of a machine, or KIND/NAME.
        #[arg(value_name = "OBJECT", required_unless_present = "files")]
        objects: Vec<Named>,
        /// Files with the objects.
        #[arg(short = 'f', long = "file", value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        grace: Grace,
        /// Return at once.
        #[arg(long)]
        no_wait: bool,
    },
    /// Report the state of every field: error, unknown, unsupported (no effect yet), ignored (no meaning on one machine),
    /// accepted. Changes nothing, and does not inspect the machine.
    Validate {
        /// Files with YAML or JSON documents; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// List the accepted fields too.
        #[arg(long)]
        all: bool,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Test the features that guests need on this machine, and print a remedy for each missing one.
    Check {
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_finds_no_fault() {
        Node::command().debug_assert();
    }

    #[test]
    fn options_for_all_guests_are_passed_to_systemd() {
        let typed = |words: &[&str]| {
            let all = ["virt-node", "serve"].iter().chain(words);
            let NodeCommand::Serve { serving, .. } = Node::try_parse_from(all).unwrap().command else {
                panic!()
            };
            serving.words()
        };
        assert_eq!(typed(&[]), Vec::<String>::new());
        let all = ["--accelerator=tcg", "--pod-network=10.9.0.0/16", "--pod-network6=fd00:9::/64"];
        assert_eq!(typed(&all), all);
    }
}
