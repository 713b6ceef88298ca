//! Tools of the launcher's pod: exit codes and output as backup software, the kubelet and support bundles read them.

use crate::platform::machines::{create, until_answers};
use crate::platform::place::{MACHINES, PLACE, PODS};

#[test]
fn tools_of_the_pod_answer_as_upstream_does() {
    let namespace = "tools";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    let pod = PLACE.list(PODS, namespace)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let exec = |arguments: &[&str]| {
        let all = [&["-n", namespace, "exec", pod.as_str(), "-c", "compute", "--"][..], arguments].concat();
        PLACE.kubectl(&all)
    };
    let freezer = ["/usr/bin/virt-freezer", "--freeze", "--name", "vm", "--namespace", namespace];
    assert_eq!(exec(&freezer).unwrap(), "No guest agent, exiting\n");
    let domain = format!("{namespace}_vm");
    let listed = exec(&["virsh", "list", "--all"]).unwrap();
    assert!(listed.contains(&format!(" 1    {domain}   running\n")), "{listed}");
    assert_eq!(exec(&["virsh", "-r", "domstate", &domain]).unwrap(), "running\n\n");
    let xml = exec(&["virsh", "dumpxml", &domain]).unwrap();
    assert!(xml.contains(&format!("<name>{domain}</name>")) && xml.contains("<devices>"), "{xml}");
    assert!(exec(&["virsh", "domstats", &domain]).unwrap().contains("vcpu.current=1"));
    assert_eq!(exec(&["virsh", "dommemstat", &domain]).unwrap(), "actual 65536\n");
    let absent = exec(&["virsh", "dumpxml", "other"]).unwrap_err();
    assert!(absent.contains("failed to get domain 'other'") && absent.contains("exit code 1"), "{absent}");
    let ping = ["virt-probe", "--guestAgentPing", "--domainName", &domain, "--timeoutSeconds", "1"];
    assert!(exec(&ping).unwrap_err().contains("exit code 1"));
    // Support bundles find the launcher's process, and read the packet filter of its network.
    assert!(!exec(&["pgrep", "-f", "virt-launcher"]).unwrap().is_empty());
    assert!(exec(&["/usr/sbin/nft", "--version"]).unwrap().contains("nftables"));
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
