#!/bin/sh
# A CNI plugin for tests: a veth pair between the node and the pod.
config=$(cat)
field() { printf '%s' "$config" | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }
log=$(field log)
[ -z "$log" ] || echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS $CNI_ARGS" >>"$log"
host="v$(printf '%s' "$CNI_CONTAINERID$CNI_IFNAME" | cksum | cut -d' ' -f1)"
mac=$(printf '%s' "$CNI_ARGS" | sed -n 's/.*MAC=\([0-9a-f:]*\).*/\1/p')
case $CNI_COMMAND in
ADD)
    if [ "$(field mode)" = fail ]; then
        echo '{"cniVersion": "1.1.0", "code": 100, "msg": "the switch is on fire"}'
        exit 1
    fi
    ip link add "$host" type veth peer name "$CNI_IFNAME" address "$mac" netns "$CNI_NETNS" || exit 1
    ip link set "$host" up
    nsenter --net="$CNI_NETNS" ip link set "$CNI_IFNAME" up
    ips=
    if [ -n "$(field address)" ]; then
        nsenter --net="$CNI_NETNS" ip addr add "$(field address)" dev "$CNI_IFNAME"
        ips=", \"ips\": [{\"interface\": 0, \"address\": \"$(field address)\"}]"
        [ -z "$(field gateway)" ] || ips="$ips, \"routes\": [{\"dst\": \"0.0.0.0/0\", \"gw\": \"$(field gateway)\"}, \
            {\"dst\": \"198.51.100.0/24\", \"gw\": \"$(field gateway)\"}]"
    fi
    echo "{\"cniVersion\": \"1.1.0\", \"interfaces\": [{\"name\": \"$CNI_IFNAME\", \"mac\": \"$mac\", \"mtu\": 1500, \"sandbox\": \"$CNI_NETNS\"}]$ips}"
    ;;
DEL)
    [ "$(field mode)" != stuck ] || exit 1
    [ "$(field mode)" != hang ] || exec sleep 60
    [ "$(field mode)" != by-name ] || exec nsenter --net="$CNI_NETNS" ip link del "$CNI_IFNAME"
    ip link del "$host" 2>/dev/null
    exit 0
    ;;
esac
