//! The command line: virtctl's verbs and flags.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::credentials::{Account, PublicKey};
use crate::output::{Document, Format};
use crate::port::Forwarded;
use crate::site::Which;
use crate::ssh::{self, Login};
use crate::target::{Target, TargetKind};
use crate::{adm, create, dump, expose, upload, vnc, volume};

const AFTER: &str = "\
Examples:
  kubectl virt create vm --name web --volume-import type:http,url:https://example.com/disk.qcow2,size:10Gi | kubectl apply -f -
  kubectl virt start web
  kubectl virt console web
  kubectl virt port-forward vm/web 8080:80
  kubectl virt ssh root@vm/web
  kubectl virt expose vm web --name web --port 80
  kubectl virt stop web

The same commands: kubectl virt VERB, virt-node --kubeconfig FILE VERB, virt-node cluster VERB.

Exit codes: 0 good, 1 the cluster refuses it or there is no such object, 2 wrong usage or kubeconfig, 3 the cluster cannot be
reached or this machine refuses something.";

/// Commands for virtual machines in a Kubernetes cluster, with virtctl's verbs
#[derive(Debug, Parser)]
#[command(name = "kubectl-virt", version, after_help = AFTER)]
pub(crate) struct Client {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// A machine or run by name, and whether anything changes.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Name
    pub(crate) name: String,
    /// Check the request without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `vm NAME` or `vmi NAME`.
#[derive(Debug, Args)]
pub(crate) struct Kinded {
    /// vm or vmi
    #[arg(value_name = "KIND")]
    pub(crate) kind: TargetKind,
    /// Name
    pub(crate) name: String,
    /// Check the request without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// How soon a guest is killed.
#[derive(Debug, Args)]
pub(crate) struct Grace {
    /// Kill the guest after --grace-period, whatever its own grace period is
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false,
          default_missing_value = "true", action = ArgAction::Set)]
    pub(crate) force: bool,
    /// Seconds until the guest is killed; needs --force [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_period: Option<u64>,
}

/// A report of the guest agent.
#[derive(Debug, Args)]
pub(crate) struct Reported {
    /// Name of the VirtualMachineInstance
    pub(crate) name: String,
    /// Format; virtctl's is json
    #[arg(short, long, value_enum, default_value_t = Format::Json)]
    pub(crate) output: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    #[command(flatten)]
    Remote(Box<Remote>),
    #[command(flatten)]
    Local(Local),
}

/// Verbs that need a cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum Remote {
    /// Start a virtual machine
    Start {
        #[command(flatten)]
        of: Named,
        /// Start with the processors stopped until unpause
        #[arg(long)]
        paused: bool,
    },
    /// Stop a virtual machine
    Stop {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        grace: Grace,
    },
    /// Restart a virtual machine
    Restart {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        grace: Grace,
    },
    /// Stop the processors of a virtual machine
    Pause(Kinded),
    /// Let the processors of a virtual machine run again
    Unpause(Kinded),
    /// Ask the guest to reboot
    SoftReboot {
        /// Name of the VirtualMachineInstance
        name: String,
    },
    /// Press the reset button
    Reset {
        /// Name of the VirtualMachineInstance
        name: String,
    },
    /// Move a virtual machine to another node
    Migrate {
        #[command(flatten)]
        of: Named,
        /// Labels that the new node must have: KEY=VALUE[,KEY=VALUE]
        #[arg(long = "addedNodeSelector", value_name = "LABELS", value_delimiter = ',', value_parser = label)]
        added_node_selector: Vec<(String, String)>,
    },
    /// Cancel the migration of a virtual machine
    MigrateCancel(Named),
    /// Cancel the evacuation of a virtual machine from its node
    EvacuateCancel(Kinded),
    /// Connect to the serial console; Ctrl-] ends
    Console {
        /// The guest: NAME or KIND/NAME
        target: Target,
        /// Minutes to wait for the guest to run
        #[arg(long, value_name = "MINUTES", default_value_t = 5)]
        timeout: u64,
    },
    /// Connect to the screen with a VNC viewer
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Vnc {
        #[command(subcommand)]
        picture: Option<Picture>,
        /// Name of the VirtualMachineInstance
        #[arg(required = true)]
        name: Option<String>,
        #[command(flatten)]
        options: vnc::Options,
    },
    /// Connect a USB device of this machine to a guest with the local usbredirect
    Usbredir {
        /// VENDOR:PRODUCT or BUS-DEVICE as lsusb prints them, and the name of the VirtualMachineInstance
        #[arg(required = true, num_args = 1..=2, value_names = ["DEVICE", "NAME"])]
        words: Vec<String>,
        /// Do not start usbredirect, and take no device; print the address for it
        #[arg(long)]
        no_launch: bool,
    },
    /// Forward ports of this machine to a guest
    PortForward {
        /// The guest: KIND/NAME[/NAMESPACE], with kind vm or vmi
        target: Target,
        /// [PROTOCOL/]LOCAL[:GUEST], such as 8080:80 or udp/5353:53; LOCAL 0 is a free port
        #[arg(required = true, value_name = "PORT")]
        ports: Vec<Forwarded>,
        /// Address of this machine
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
        address: IpAddr,
        /// Connect standard input and output instead of listening, for ssh's ProxyCommand
        #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false,
              default_missing_value = "true", action = ArgAction::Set)]
        stdio: bool,
    },
    /// Log in with the local ssh
    Ssh {
        /// The guest: [USER@]KIND/NAME[/NAMESPACE]
        login: Login<Target>,
        #[command(flatten)]
        options: ssh::Options,
        /// Command to run instead of a shell
        #[arg(short, long)]
        command: Option<String>,
    },
    /// Copy files with the local scp
    Scp {
        #[command(flatten)]
        copy: ssh::Copy,
        #[command(flatten)]
        options: ssh::Options,
    },
    /// Report on the guest's operating system, from its agent
    Guestosinfo(Reported),
    /// List logged-in users, from the guest's agent
    Userlist(Reported),
    /// List mounted file systems, from the guest's agent
    Fslist(Reported),
    /// Attach a volume to a virtual machine
    #[command(name = "addvolume")]
    AddVolume {
        /// Name of the virtual machine
        name: String,
        #[command(flatten)]
        volume: volume::Volume,
    },
    /// Detach a volume from a virtual machine
    #[command(name = "removevolume")]
    RemoveVolume {
        /// Name of the virtual machine
        name: String,
        /// Name of the volume in the machine
        #[arg(long, value_name = "NAME")]
        volume_name: String,
        /// No effect: the volume is always taken from the machine too
        #[arg(long, hide = true)]
        persist: bool,
        /// Check the request without changing anything
        #[arg(long)]
        dry_run: bool,
    },
    /// Write the memory of a virtual machine to a claim
    MemoryDump {
        #[command(subcommand)]
        action: Dump,
    },
    /// Upload a disk image or an archive into a DataVolume or PersistentVolumeClaim
    ImageUpload(Box<upload::Options>),
    /// Create a Service for a virtual machine
    Expose(expose::Options),
    /// Print a virtual machine with its instance type and preference written out
    Expand {
        /// Name of a virtual machine of the cluster
        #[arg(long, value_name = "NAME", required_unless_present = "file", conflicts_with = "file")]
        vm: Option<String>,
        /// File with a virtual machine; - is standard input
        #[arg(short, long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Format
        #[arg(short, long, value_enum, default_value_t = Document::Yaml)]
        output: Document,
    },
    /// Print the objects that a virtual machine needs, as a tree
    #[command(name = "objectgraph")]
    ObjectGraph {
        /// Name of the virtual machine, or with --vmi of the VirtualMachineInstance
        name: String,
        /// Start from the VirtualMachineInstance
        #[arg(long)]
        vmi: bool,
        /// Without the objects that it runs without
        #[arg(long)]
        exclude_optional: bool,
        /// Labels that the objects must have: KEY=VALUE[,KEY=VALUE]
        #[arg(long, value_name = "LABELS", value_delimiter = ',', value_parser = label)]
        selector: Vec<(String, String)>,
    },
    /// Change SSH keys and passwords that a guest gets through its agent
    Credentials {
        #[command(subcommand)]
        action: Box<Credentials>,
    },
    /// List the devices of nodes that virtual machines may have
    PermittedDevices,
    /// Change the settings of the cluster's virtualization
    Adm {
        #[command(subcommand)]
        action: Adm,
    },
}

/// Verbs that work without one.
#[derive(Debug, Subcommand)]
pub(crate) enum Local {
    /// Print a manifest made from flags
    Create {
        #[command(subcommand)]
        what: Create,
    },
    /// Print the versions of this program and of the cluster's virtualization API
    Version {
        /// Only this program's
        #[arg(short, long)]
        client: bool,
        /// Format
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Print the completion script of a shell
    Completion {
        /// Shell
        #[arg(value_enum)]
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Credentials {
    /// Add an SSH key of a user
    AddSshKey {
        #[command(flatten)]
        of: Account,
        #[command(flatten)]
        key: PublicKey,
        /// Make a Secret with the key, which the guest gets at its next start [default: where the user has none]
        #[arg(long, conflicts_with = "update_secret")]
        create_secret: bool,
        /// Add the key to a Secret that the machine names
        #[arg(long)]
        update_secret: bool,
    },
    /// Remove an SSH key of a user
    RemoveSshKey {
        #[command(flatten)]
        of: Account,
        #[command(flatten)]
        key: PublicKey,
    },
    /// Set the password of a user, in a Secret that the machine names
    SetPassword {
        #[command(flatten)]
        of: Account,
        /// Password
        #[arg(short, long)]
        password: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Adm {
    /// Show, set or reset the levels of the components' logs
    LogVerbosity(Box<adm::Levels>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Picture {
    /// Save a picture of the screen
    Screenshot {
        /// Name of the VirtualMachineInstance
        name: String,
        /// File to write, PNG
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Move the mouse first, to wake the screen
        #[arg(long)]
        move_cursor: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dump {
    /// Dump to a claim
    Get {
        /// Name of the virtual machine
        name: String,
        #[command(flatten)]
        options: dump::Options,
    },
    /// Forget the claim
    Remove {
        /// Name of the virtual machine
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Create {
    /// A VirtualMachine
    #[command(visible_alias = "VirtualMachine")]
    Vm(Box<create::Options>),
    /// A VirtualMachineClusterInstancetype, or a VirtualMachineInstancetype
    Instancetype(create::flavor::InstancetypeOptions),
    /// A VirtualMachineClusterPreference, or a VirtualMachinePreference
    Preference(create::flavor::PreferenceOptions),
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// The words of a command line, the program's name first, without those that chose this program.
pub(crate) fn parse(name: &'static str, words: Vec<OsString>) -> Result<Client, clap::Error> {
    let mut command = <Client as clap::CommandFactory>::command().bin_name(name);
    let mut matches = command.try_get_matches_from_mut(words)?;
    <Client as clap::FromArgMatches>::from_arg_matches_mut(&mut matches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(words: &str) -> Result<Client, clap::Error> {
        parse("kubectl virt", format!("x {words}").split(' ').map(OsString::from).collect())
    }

    #[test]
    fn clap_finds_no_fault() {
        Client::command().debug_assert();
    }

    #[test]
    fn command_lines_of_virtctl_are_understood() {
        for words in [
            "start a --paused --dry-run",
            "stop a --force --grace-period=0",
            "stop a --force=true --grace-period 0",
            "restart a -n ns",
            "pause vm a",
            "unpause vmi a --dry-run",
            "soft-reboot a",
            "reset a",
            "migrate a --addedNodeSelector k=v,l=w",
            "migrate-cancel a",
            "evacuate-cancel vmi a",
            "console a --timeout 1",
            "console vmi/a",
            "vnc a --proxy-only --port 5900",
            "vnc screenshot a -f x.png",
            "usbredir 0951:1666 a",
            "usbredir a --no-launch",
            "port-forward vmi/a/ns tcp/8080:80 udp/53",
            "port-forward --stdio=true vmi/a/ns 22",
            "ssh me@vm/a/ns -i key --local-ssh=true -t -v -c ls",
            "scp -i key --recursive a me@vmi/b:/c",
            "guestosinfo a",
            "userlist a -o text",
            "fslist a",
            "addvolume a --volume-name v --persist --serial 1",
            "removevolume a --volume-name v",
            "memory-dump get a --claim-name c",
            "memory-dump get a --claim-name c --create-claim --storage-class s --access-mode ReadWriteMany",
            "memory-dump remove a",
            "create vm --name a --memory 1Gi",
            "create instancetype --cpu 2 --memory 1Gi --gpu name:gpu1,devicename:nvidia --namespaced",
            "create preference --cpu-topology sockets",
            "expose vmi a --name s --port 22 --type NodePort",
            "expand --vm a -o json",
            "expand -f a.yaml",
            "objectgraph a",
            "credentials add-ssh-key --user me --file k.pub --create-secret --force a",
            "credentials add-ssh-key -u me --value k --update-secret --secret s a",
            "credentials remove-ssh-key -u me -f k.pub a",
            "credentials set-password --user me --password p a",
            "permitted-devices",
            "adm log-verbosity --virt-api --virt-handler",
            "adm log-verbosity --reset --all=3 --virt-launcher=5",
            "objectgraph a --vmi --exclude-optional --selector k=v,l=w",
            "image-upload dv a --size 1Gi --image-path f --uploadproxy-url https://x --insecure --force-bind",
            "image-upload pvc a --no-create --archive-path f --wait-secs 5",
            "version --client",
            "completion bash",
            "--kubeconfig k --context c start a",
        ] {
            assert!(parsed(words).is_ok(), "{words}: {}", parsed(words).unwrap_err());
        }
        for words in [
            "start",
            "pause pod a",
            "expand",
            "memory-dump get a --create-claim",
            "port-forward vmi/a",
            "vnc",
            "usbredir",
            "usbredir 02-03 a b",
            "migrate a --addedNodeSelector k",
            "objectgraph a --selector k",
            "credentials add-ssh-key --user me a",
            "credentials add-ssh-key --user me --file f --value k a",
            "credentials add-ssh-key --user me --file f --create-secret --update-secret a",
        ] {
            assert!(parsed(words).is_err(), "{words}");
        }
    }
}
