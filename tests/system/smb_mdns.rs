//! Shares of SMB as avahi announces them to machines nearby: judged by avahi-browse, in a network of its own.

use std::path::Path;

use tests::skip;

use crate::cli::Place;
use crate::snapdir::can_mount;

/// A network with one other end, a message bus, avahi, and an appliance in it. What is printed is judged.
const SCRIPT: &str = r#"
mount --bind services /etc/avahi/services
mount -t tmpfs tmpfs /run
mkdir -p /run/dbus /run/avahi-daemon
ip link set lo up
ip link add near type veth peer name far
ip addr add 192.0.2.1/24 dev near
ip link set near up
ip link set far up
dbus-daemon --system --fork --nopidfile
avahi-daemon --no-drop-root --no-rlimits --no-chroot -D 2>avahi.log
found() { timeout 20 avahi-browse -rpt $1 2>>avahi.log | grep '^=;near;IPv4' | cut -d';' -f8-; }
until_found() { for try in $(seq 100); do found $1 | grep -q -- "$2" && return; sleep 0.2; done; echo "no $2"; }
sanbox serve --nfs-port 0 --iscsi-port 0 --https-port 0 --smb-port 445 >served 2>&1 &
daemon=$!
until_found _adisk._tcp adVN=mac,
found _adisk._tcp | cut -d';' -f3 | tr ' ' '\n' | LC_ALL=C sort
found _smb._tcp
found _device-info._tcp
sanbox smb status | sed -n 2p
zfs set sharesmb=name=vault,timemachine tank/mac
until_found _adisk._tcp adVN=vault,
found _adisk._tcp | grep -c adVN=mac,
zfs set sharesmb=name=vault,rw=127.0.0.1 tank/mac && zfs set sharesmb=off tank/photos
for try in $(seq 100); do ls services | grep -q . || break; sleep 0.1; done
sanbox smb status | sed -n 2p
zfs set sharesmb=on tank/photos
until_found _smb._tcp 445
found _adisk._tcp
kill $daemon
wait $daemon
ls services
"#;

#[test]
fn avahi_announces_what_other_hosts_reach() {
    let has = |program: &str| {
        let found = ["/usr/sbin", "/usr/bin"];
        found
            .iter()
            .any(|bin| Path::new(bin).join(program).exists())
    };
    let place = Place::new();
    if !can_mount(&place) || !has("smbd") {
        return skip("mDNS of SMB", "there is no FUSE, or no Samba");
    }
    if !(has("avahi-daemon") && has("avahi-browse") && has("dbus-daemon")) {
        return skip(
            "mDNS of SMB",
            "avahi-daemon, avahi-utils or dbus is not installed",
        );
    }
    let made = place.run(
        "truncate -s 128M a && zpool create -O mountpoint=none tank $PWD/a && zfs create -o sharesmb=name=mac,timemachine tank/mac && \
         zfs create -o sharesmb=name=photos tank/photos && mkdir services",
    );
    assert_eq!(made, "");
    std::fs::write(place.path("work/script"), SCRIPT).expect("written");
    let said = place.run(
        "unshare --mount --net --uts --pid --fork --kill-child=KILL --mount-proc sh ./script 2>&1",
    );
    let log = std::fs::read_to_string(place.path("work/served")).unwrap_or_default();
    assert_eq!(
        said,
        "\"dk0=adVN=mac,adVF=0x82\"\n\"sys=waMa=0,adVF=0x100\"\n\
         192.0.2.1;445;\n\
         192.0.2.1;9;\"model=RackMac\"\n\
         announced by mDNS: avahi reads /etc/avahi/services/sanbox-smb-445.service\n\
         0\n\
         not announced by mDNS: nothing is shared with other hosts\n",
        "{log}"
    );
}
