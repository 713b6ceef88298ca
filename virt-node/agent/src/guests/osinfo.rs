//! Reports of a guest's agent: operating system, users, filesystems, network interfaces. Parsing is pure and bounded: the
//! guest may send anything.

use api::kubevirt::{InterfaceStatus, VirtualMachineInstanceSpec};
pub(crate) use guest::agent::{OS_INFO, os};
use guest::agent::{returned, short};
use serde::Deserialize;
use serde_json::{Value, json};

/// Most entries of a list.
const LIST_MAX: usize = 64;
/// Addresses of an interface that are kept.
const ADDRESSES_MAX: usize = 16;

/// Commands of the guest agent (QGA), as it is sent them.
pub(crate) const INTERFACES: &str = "{\"execute\": \"guest-network-get-interfaces\"}";
pub(crate) const USERS: &str = "{\"execute\": \"guest-get-users\"}";
pub(crate) const FILESYSTEMS: &str = "{\"execute\": \"guest-get-fsinfo\"}";
pub(crate) const HOST_NAME: &str = "{\"execute\": \"guest-get-host-name\"}";
pub(crate) const TIMEZONE: &str = "{\"execute\": \"guest-get-timezone\"}";
pub(crate) const VERSION: &str = "{\"execute\": \"guest-info\"}";

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct GuestInterface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    hardware_address: String,
    #[serde(default)]
    ip_addresses: Vec<GuestAddress>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct GuestAddress {
    ip_address: String,
}

/// Interfaces of the status with what `guest-network-get-interfaces` adds: names and addresses in the guest. Behind
/// masquerade the pod's addresses stay, since the guest is reached by them. Interfaces that only the guest has follow, as
/// upstream lists them.
pub(crate) fn merge(
    known: &[InterfaceStatus],
    masqueraded: &[String],
    text: &str,
) -> Option<Vec<InterfaceStatus>> {
    let found: Vec<GuestInterface> = returned(text)?;
    let mut merged: Vec<_> = known.iter().filter(|status| status.name.is_some()).cloned().collect();
    for one in found.into_iter().take(LIST_MAX).filter(|one| one.name != "lo") {
        let addresses: Vec<String> = one
            .ip_addresses
            .into_iter()
            .filter(|address| address.ip_address.parse::<std::net::IpAddr>().is_ok())
            .take(ADDRESSES_MAX)
            .map(|address| address.ip_address)
            .collect();
        let mac = one.hardware_address.to_ascii_lowercase();
        let same = |status: &&mut InterfaceStatus| {
            status.mac.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(&mac))
        };
        let name = Some(short(&one.name));
        if let Some(status) = merged.iter_mut().find(same) {
            status.interface_name = name;
            status.info_source = Some(with_source(status.info_source.as_deref()));
            let masqueraded = status.name.as_ref().is_some_and(|name| masqueraded.contains(name));
            if !masqueraded && !addresses.is_empty() {
                status.ip_address = addresses.first().cloned();
                status.ip_addresses = addresses;
            }
        } else {
            merged.push(InterfaceStatus {
                interface_name: name,
                mac: Some(short(&mac)).filter(|mac| !mac.is_empty()),
                ip_address: addresses.first().cloned(),
                ip_addresses: addresses,
                info_source: Some("guest-agent".to_owned()),
                ..InterfaceStatus::default()
            });
        }
    }
    Some(merged)
}

/// The sources of an interface's status with the guest agent among them, in upstream's order.
fn with_source(before: Option<&str>) -> String {
    let before: Vec<&str> = before.unwrap_or_default().split(", ").collect();
    let all = ["domain", "guest-agent", "multus-status"];
    let all = all.into_iter().filter(|one| *one == "guest-agent" || before.contains(one));
    all.collect::<Vec<_>>().join(", ")
}

/// The list of users for `virtctl userlist`, in upstream's form.
pub(crate) fn users(text: &str) -> Option<Value> {
    let found: Vec<Value> = returned(text)?;
    let user = |user: &Value| {
        json!({
            "userName": short(user.get("user").and_then(Value::as_str).unwrap_or_default()),
            "domain": short(user.get("domain").and_then(Value::as_str).unwrap_or_default()),
            "loginTime": user.get("login-time").and_then(Value::as_f64).unwrap_or_default(),
        })
    };
    Some(json!({
        "metadata": {},
        "kind": "VirtualMachineInstanceGuestOSUserList",
        "apiVersion": "subresources.kubevirt.io/v1",
        "items": found.iter().take(LIST_MAX).map(user).collect::<Vec<_>>(),
    }))
}

/// The list of filesystems for `virtctl fslist`, in upstream's form.
pub(crate) fn filesystems(text: &str) -> Option<Value> {
    let found: Vec<Value> = returned(text)?;
    let text = |of: &Value, key: &str| short(of.get(key).and_then(Value::as_str).unwrap_or_default());
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or_default();
    let disk = |disk: &Value| json!({"busType": text(disk, "bus-type"), "serial": text(disk, "serial")});
    let filesystem = |one: &Value| {
        let disks = one.get("disk").and_then(Value::as_array);
        json!({
            "diskName": text(one, "name"),
            "mountPoint": text(one, "mountpoint"),
            "fileSystemType": text(one, "type"),
            "usedBytes": number(one, "used-bytes"),
            "totalBytes": number(one, "total-bytes"),
            "disk": disks.into_iter().flatten().take(LIST_MAX).map(disk).collect::<Vec<_>>(),
        })
    };
    Some(json!({
        "metadata": {},
        "kind": "VirtualMachineInstanceFileSystemList",
        "apiVersion": "subresources.kubevirt.io/v1",
        "items": found.iter().take(LIST_MAX).map(filesystem).collect::<Vec<_>>(),
    }))
}

/// Commands that every agent is to have: upstream's list.
const BASIC: [&str; 10] = [
    "guest-ping",
    "guest-get-time",
    "guest-info",
    "guest-shutdown",
    "guest-network-get-interfaces",
    "guest-get-fsinfo",
    "guest-get-host-name",
    "guest-get-users",
    "guest-get-timezone",
    "guest-get-osinfo",
];
/// Commands that bring keys.
const KEYS: [&str; 3] =
    ["guest-ssh-get-authorized-keys", "guest-ssh-add-authorized-keys", "guest-ssh-remove-authorized-keys"];
/// The command that brings passwords.
const PASSWORDS: [&str; 1] = ["guest-set-user-password"];

/// Groups of commands that an agent has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    basic: bool,
    keys: bool,
    passwords: bool,
}

/// The groups of commands in the answer to `guest-info`; `None`: it lists no commands.
pub(crate) fn abilities(text: &str) -> Option<Abilities> {
    #[derive(Deserialize)]
    struct Info {
        supported_commands: Vec<Supported>,
    }
    #[derive(Deserialize)]
    struct Supported {
        name: String,
        enabled: bool,
    }
    let Info { supported_commands: listed } = returned(text)?;
    let all =
        |names: &[&str]| names.iter().all(|name| listed.iter().any(|one| one.enabled && one.name == *name));
    let found = Abilities { basic: all(&BASIC), keys: all(&KEYS), passwords: all(&PASSWORDS) };
    (!listed.is_empty()).then_some(found)
}

impl Abilities {
    /// Why the agent cannot do everything that the guest's spec needs, in upstream's words.
    pub(crate) fn lack(self, spec: &VirtualMachineInstanceSpec) -> Option<&'static str> {
        let credentials = &spec.access_credentials;
        let keys = credentials.iter().filter_map(|one| one.ssh_public_key.as_ref());
        let keys = keys.filter(|one| one.propagation_method.qemu_guest_agent.is_some()).count() > 0;
        let passwords = credentials.iter().filter_map(|one| one.user_password.as_ref());
        let passwords = passwords.filter(|one| one.propagation_method.qemu_guest_agent.is_some()).count() > 0;
        if !self.basic {
            Some("This guest agent doesn't support required basic commands")
        } else if keys && !self.keys {
            Some("This guest agent doesn't support required public key commands")
        } else if passwords && !self.passwords {
            Some("This guest agent doesn't support required password commands")
        } else {
            None
        }
    }
}

/// Everything together for `virtctl guestosinfo`, in upstream's form, from the agent's answers.
pub(crate) fn everything(answers: &Answers) -> Value {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct HostName {
        host_name: String,
    }
    #[derive(Deserialize)]
    struct Zone {
        zone: Option<String>,
        offset: Option<i64>,
    }
    #[derive(Deserialize)]
    struct Info {
        version: String,
    }
    let get = |text: &Option<String>| text.clone().unwrap_or_default();
    let version = returned::<Info>(&get(&answers.version)).map(|info| short(&info.version));
    let host = returned::<HostName>(&get(&answers.host_name)).map(|host| short(&host.host_name));
    let zone = returned::<Zone>(&get(&answers.timezone)).map(|zone| {
        format!("{}, {}", short(zone.zone.as_deref().unwrap_or_default()), zone.offset.unwrap_or_default())
    });
    let mut all = json!({
        "kind": "VirtualMachineInstanceGuestAgentInfo",
        "apiVersion": "subresources.kubevirt.io/v1",
        "guestAgentVersion": version.unwrap_or_default(),
        "hostname": host.unwrap_or_default(),
        "timezone": zone.unwrap_or_default(),
    });
    let lists = [
        ("os", os(&get(&answers.os)).and_then(|info| serde_json::to_value(info).ok())),
        ("userList", users(&get(&answers.users)).map(|list| list["items"].clone())),
        ("fsInfo", filesystems(&get(&answers.filesystems)).map(|list| json!({"disks": list["items"]}))),
    ];
    for (key, value) in lists {
        if let Some(value) = value {
            all[key] = value;
        }
    }
    all
}

/// Answers of the agent, where it gave them.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) version: Option<String>,
    pub(crate) os: Option<String>,
    pub(crate) host_name: Option<String>,
    pub(crate) timezone: Option<String>,
    pub(crate) users: Option<String>,
    pub(crate) filesystems: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_guest_are_bounded() {
        let long = "x".repeat(1 << 20);
        let info = os(&format!("{{\"return\": {{\"id\": \"debian\", \"more\": 1, \"name\": \"{long}\"}}}}"))
            .unwrap();
        assert_eq!((info.id.as_deref(), info.name.map(|name| name.len())), (Some("debian"), Some(256)));
        for wrong in ["", "{}", "{\"return\": 1}", "{\"return\": {\"id\": 1}}"] {
            assert_eq!(os(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_agent_lacks_what_the_guests_spec_needs() {
        let info = |names: &[&str], disabled: &[&str]| {
            let command = |name: &&str, enabled: bool| json!({"name": name, "enabled": enabled, "success-response": true});
            let enabled = names.iter().map(|name| command(name, true));
            let listed: Vec<Value> =
                enabled.chain(disabled.iter().map(|name| command(name, false))).collect();
            json!({"return": {"version": "7.2.0", "supported_commands": listed}}).to_string()
        };
        let by_agent = json!({"source": {"secret": {"secretName": "s"}},
            "propagationMethod": {"qemuGuestAgent": {"users": ["a"]}}});
        let by_disk =
            json!({"source": {"secret": {"secretName": "s"}}, "propagationMethod": {"noCloud": {}}});
        let spec = |credentials: Value| -> VirtualMachineInstanceSpec {
            serde_json::from_value(json!({"domain": {}, "accessCredentials": credentials})).unwrap()
        };
        let (plain, disk) = (spec(json!([])), spec(json!([{"sshPublicKey": by_disk}])));
        let keys = spec(json!([{"sshPublicKey": by_agent}]));
        let source = json!({"secret": {"secretName": "s"}});
        let passwords = spec(json!([
            {"userPassword": {"source": source, "propagationMethod": {"qemuGuestAgent": {}}}},
        ]));
        let with_keys = [&BASIC[..], &KEYS[..]].concat();
        for (text, spec, expected) in [
            (info(&BASIC, &[]), &plain, None),
            (info(&BASIC, &[]), &disk, None),
            (info(&BASIC, &[]), &keys, Some("public key commands")),
            (info(&BASIC, &[]), &passwords, Some("password commands")),
            (info(&with_keys, &[]), &keys, None),
            (info(&with_keys, &PASSWORDS), &passwords, Some("password commands")),
            (info(&BASIC[1..], &BASIC[..1]), &plain, Some("basic commands")),
        ] {
            let lack = abilities(&text).unwrap().lack(spec);
            assert_eq!(
                lack.map(|text| text.ends_with(expected.unwrap_or("no lack"))),
                expected.map(|_| true),
                "{text}"
            );
        }
        for without in [info(&[], &[]), "{\"return\": {\"version\": \"1\"}}".to_owned(), "{}".to_owned()] {
            assert_eq!(abilities(&without), None, "{without}");
        }
    }

    fn status(name: &str, mac: &str, address: &str) -> InterfaceStatus {
        InterfaceStatus {
            name: Some(name.to_owned()),
            mac: Some(mac.to_owned()),
            ip_address: Some(address.to_owned()),
            ip_addresses: vec![address.to_owned()],
            info_source: Some("domain".to_owned()),
            ..InterfaceStatus::default()
        }
    }

    #[test]
    fn the_guests_interfaces_are_found_by_their_address() {
        let known =
            [status("default", "02:00:00:00:00:01", "10.244.0.5"), status("blue", "02:00:00:00:00:02", "")];
        let text = json!({"return": [
            {"name": "lo", "hardware-address": "00:00:00:00:00:00"},
            {"name": "enp1s0", "hardware-address": "02:00:00:00:00:01",
             "ip-addresses": [{"ip-address": "10.0.2.2", "ip-address-type": "ipv4", "prefix": 24}]},
            {"name": "enp2s0", "hardware-address": "02:00:00:00:00:02",
             "ip-addresses": [{"ip-address": "192.0.2.7"}, {"ip-address": "nonsense"}]},
            {"name": "docker0", "hardware-address": "02:42:00:00:00:03"},
        ]});
        let merged = merge(&known, &["default".to_owned()], &text.to_string()).unwrap();
        assert_eq!(merged.len(), 3);
        assert_eq!(merged[0].ip_address.as_deref(), Some("10.244.0.5"), "the pod's address stays");
        assert_eq!(merged[0].interface_name.as_deref(), Some("enp1s0"));
        assert_eq!(merged[0].info_source.as_deref(), Some("domain, guest-agent"));
        assert_eq!(merged[1].ip_addresses, ["192.0.2.7"]);
        assert_eq!(merged[2].interface_name.as_deref(), Some("docker0"));
        assert_eq!((&merged[2].name, merged[2].info_source.as_deref()), (&None, Some("guest-agent")));
        assert_eq!(with_source(Some("domain, multus-status")), "domain, guest-agent, multus-status");
        let again = merge(&merged, &["default".to_owned()], &text.to_string()).unwrap();
        assert_eq!(again, merged, "a second report changes nothing");
        assert_eq!(merge(&known, &[], "{}"), None);
    }

    #[test]
    fn lists_have_upstreams_form() {
        let list = users("{\"return\": [{\"user\": \"root\", \"login-time\": 1.5}]}").unwrap();
        assert_eq!(list["items"][0], json!({"userName": "root", "domain": "", "loginTime": 1.5}));
        let text = "{\"return\": [{\"name\": \"vda1\", \"mountpoint\": \"/\", \"type\": \"ext4\", \"used-bytes\": 5, \"total-bytes\": 9, \"disk\": []}]}";
        let list = filesystems(text).unwrap();
        assert_eq!(list["items"][0]["mountPoint"], "/");
        let all = everything(&Answers {
            os: Some("{\"return\": {\"id\": \"debian\"}}".into()),
            ..Answers::default()
        });
        assert_eq!((&all["os"]["id"], all.get("userList")), (&json!("debian"), None));
    }
}
