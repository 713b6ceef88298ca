//! Reports of the guest agent: guestosinfo, userlist, fslist. Printed as JSON, as virtctl does, or as a table.

use serde_json::Value;

use crate::error::{Result, failed};
use crate::output::Format;
use crate::site::{Site, text};
use crate::target::Target;

/// A report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The operating system, its users and file systems.
    System,
    /// Logged-in users.
    Users,
    /// File systems that are mounted.
    FileSystems,
}

impl Report {
    fn path(self) -> &'static str {
        match self {
            Self::System => "guestosinfo",
            Self::Users => "userlist",
            Self::FileSystems => "filesystemlist",
        }
    }

    fn failed(self, name: &str) -> String {
        let doing = match self {
            Self::System => "getting guestosinfo",
            Self::Users => "listing users",
            Self::FileSystems => "listing filesystems",
        };
        format!("Error {doing} of VirtualMachineInstance {name}")
    }
}

/// Asks for a report.
///
/// # Errors
/// The guest does not run or has no agent.
pub(crate) async fn report(site: &Site, name: &str, report: Report, format: Format) -> Result<String> {
    let path = site.verb(&Target::instance(name), report.path())?;
    let answer = site.read(&path).await.map_err(failed(report.failed(name)))?;
    Ok(render(report, &answer, format))
}

fn render(report: Report, answer: &Value, format: Format) -> String {
    if format == Format::Json {
        return format!("{answer:#}\n");
    }
    let items = answer["items"].as_array().into_iter().flatten();
    match report {
        Report::System => {
            let rows = [
                ("Hostname", "/hostname"),
                ("System", "/os/prettyName"),
                ("Kernel", "/os/kernelRelease"),
                ("Machine", "/os/machine"),
                ("Time zone", "/timezone"),
                ("Guest agent", "/guestAgentVersion"),
            ];
            rows.map(|(name, path)| format!("{:<13}{}\n", format!("{name}:"), text(answer, path))).concat()
        }
        Report::Users => {
            let mut all = format!("{:<24}{:<16}{}\n", "USER", "DOMAIN", "LOGIN TIME");
            for user in items {
                let (name, domain) = (text(user, "/userName"), text(user, "/domain"));
                let time = user["loginTime"].as_f64().unwrap_or_default();
                all.push_str(&format!("{name:<24}{domain:<16}{time:.0}\n"));
            }
            all
        }
        Report::FileSystems => {
            let mut all =
                format!("{:<16}{:<32}{:<8}{:>14} {:>14}\n", "DISK", "MOUNT", "TYPE", "USED", "TOTAL");
            for one in items {
                let (disk, mount) = (text(one, "/diskName"), text(one, "/mountPoint"));
                let (kind, used, total) =
                    (text(one, "/fileSystemType"), &one["usedBytes"], &one["totalBytes"]);
                all.push_str(&format!("{disk:<16}{mount:<32}{kind:<8}{used:>14} {total:>14}\n"));
            }
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reports_are_json_or_tables() {
        let users = json!({"items": [{"userName": "root", "domain": "", "loginTime": 1_700_000_000.5}]});
        let table = render(Report::Users, &users, Format::Text);
        assert_eq!(table.lines().count(), 2);
        assert!(table.contains("root") && table.contains("1700000000"), "{table}");
        let parsed: Value = serde_json::from_str(&render(Report::Users, &users, Format::Json)).unwrap();
        assert_eq!(parsed, users);
        let disks = json!({"items": [{"diskName": "vda1", "mountPoint": "/", "fileSystemType": "ext4",
            "usedBytes": 5, "totalBytes": 10}]});
        let table = render(Report::FileSystems, &disks, Format::Text);
        assert!(
            table.lines().nth(1).is_some_and(|line| line.contains("/ ") && line.ends_with("10")),
            "{table}"
        );
        let system = json!({"hostname": "h", "os": {"prettyName": "Debian"}});
        assert!(render(Report::System, &system, Format::Text).contains("System:      Debian"));
    }
}
