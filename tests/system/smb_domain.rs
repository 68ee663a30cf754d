//! Users of Active Directory by SMB: a domain controller of Samba's, in a network of its own, is the judge.

use std::path::Path;

use tests::skip;

use crate::cli::Place;
use crate::snapdir::can_mount;

/// A network with a domain controller, which is its name server, and an appliance by another name. What is printed is judged.
const SCRIPT: &str = r#"
work=$PWD
mount -t tmpfs tmpfs /run
mkdir -p /run/samba
ip link set lo up
ip link add near type veth peer name far
ip addr add 192.0.2.10/24 dev near
ip addr add 192.0.2.20/24 dev near
ip link set near up
ip link set far up
printf 'nameserver 192.0.2.10\nsearch ad.example\n' >resolv.conf
printf '127.0.0.1 localhost\n192.0.2.10 dc1.ad.example dc1\n192.0.2.20 store.ad.example store\n' >hosts
printf '[libdefaults]\ndefault_realm = AD.EXAMPLE\ndns_lookup_realm = false\n' >krb5.conf
for file in resolv.conf hosts krb5.conf; do touch /etc/$file; mount --bind $file /etc/$file; done
hostname dc1
samba-tool domain provision --realm=AD.EXAMPLE --domain=ADEX --server-role=dc --dns-backend=SAMBA_INTERNAL --adminpass=Passw0rd.1 \
  --host-name=dc1 --host-ip=192.0.2.10 --targetdir=$work/dc --option='interfaces=192.0.2.10' --option='bind interfaces only=yes' >provision.log 2>&1
samba-tool user create anna Secret.12 -s dc/etc/smb.conf >>provision.log 2>&1
samba-tool user create bert Secret.34 -s dc/etc/smb.conf >>provision.log 2>&1
samba-tool group add 'Photo People' -s dc/etc/smb.conf >>provision.log 2>&1
samba-tool group addmembers 'Photo People' anna -s dc/etc/smb.conf >>provision.log 2>&1
samba -D -s dc/etc/smb.conf --option="log file=$work/dc/log"
for try in $(seq 100); do smbclient -L //192.0.2.10 -U 'ADEX\anna%Secret.12' >list.log 2>&1 && break; sleep 0.2; done
sleep 2
hostname store
sanbox serve --nfs-port 0 --iscsi-port 0 --https-port 0 --smb-port 445 --listen 192.0.2.20 >served 2>&1 &
daemon=$!
runs() { for try in $(seq 200); do test $(grep -c 'SMB is served' served) = $1 && return; sleep 0.1; done; echo "no start $1"; }
as() { smbclient -U "$1" //192.0.2.20/$2 -c "$3" 2>&1 | grep -v '^putting' | sed 's/ *$//'; }
runs 1
for share in team all; do
  zfs set mountpoint=$work/$share tank/$share && zfs mount tank/$share && chmod 1777 $share && zfs unmount tank/$share
done
sanbox smb status | grep AD.EXAMPLE
as 'ADEX\anna%Secret.12' team 'put hosts before'
echo wrong | sanbox smb join --user Administrator 2>&1 | cut -c1-46
echo Passw0rd.1 >secret
sanbox smb join --user Administrator --password-file secret
grep -rl Passw0rd.1 $SANBOX_STATE
runs 2
for try in $(seq 50); do sanbox smb status | grep -q 'member of' && break; sleep 0.2; done
sanbox smb status | grep AD.EXAMPLE
as 'ADEX\anna%Secret.12' team 'put hosts by-anna'
as 'ADEX\bert%Secret.34' team 'put hosts by-bert'
as 'ADEX\anna%Secret.1' team 'put hosts wrong'
as 'ADEX\bert%Secret.34' all 'put hosts by-bert'
as 'STORE\root%pw1' all 'put hosts by-root'
echo Secret.12 | KRB5CCNAME=FILE:$work/cc kinit anna@AD.EXAMPLE >kinit.log 2>&1
KRB5CCNAME=FILE:$work/cc smbclient --use-kerberos=required --use-krb5-ccache=FILE:$work/cc //store.ad.example/all \
  -c 'put hosts by-ticket' 2>&1 | grep -v '^putting'
for share in team all; do sanbox ls -l tank/$share:/ | awk '$NF ~ /^by-/ { print $NF, ($3 >= 1010000 && $3 <= 1999999) }'; done
winbindd=$(pgrep -f 'winbindd --foreground' | head -1)
kill -KILL $winbindd
runs 3
for try in $(seq 50); do sanbox smb status | grep -q 'member of' && break; sleep 0.2; done
as 'ADEX\anna%Secret.12' team 'ls by-anna' | grep -c by-anna
sanbox smb leave --user Administrator --password-file secret
sanbox smb status | grep AD.EXAMPLE
runs 4
as 'ADEX\anna%Secret.12' team 'ls'
kill $daemon
wait $daemon
pgrep -fc 'winbindd --foreground' || true
"#;

#[test]
fn users_of_active_directory_log_in_once_the_machine_has_joined() {
    let place = Place::new();
    let has = |program: &str| {
        let found = ["/usr/sbin", "/usr/bin"];
        found
            .iter()
            .any(|bin| Path::new(bin).join(program).exists())
    };
    let needed = [
        "smbd",
        "winbindd",
        "samba",
        "samba-tool",
        "smbclient",
        "kinit",
    ];
    let has_templates = Path::new("/usr/share/samba/setup").exists();
    let has_names = Path::new("/usr/lib/x86_64-linux-gnu/libnss_winbind.so.2").exists();
    if !can_mount(&place) || !needed.into_iter().all(has) || !has_templates || !has_names {
        return skip(
            "Active Directory",
            "samba, samba-ad-provision, winbind or libnss-winbind is not installed",
        );
    }
    std::fs::create_dir_all(place.path("state")).expect("a directory");
    std::fs::write(
        place.path("state/sanbox.toml"),
        "[smb]\nworkgroup = 'ADEX'\nrealm = 'ad.example'\n",
    )
    .expect("written");
    let made = place.run(
        r"truncate -s 128M a && zpool create -O mountpoint=none -O xattr=sa -O acltype=posix tank $PWD/a && \
          zfs create -o 'sharesmb=name=team,users=@ADEX\Photo People' tank/team && zfs create -o sharesmb=name=all tank/all && \
          echo pw1 | sanbox smb passwd root",
    );
    assert_eq!(made, "");
    std::fs::write(place.path("work/script"), SCRIPT).expect("written");
    let said = place.run(
        "unshare --mount --net --uts --pid --fork --kill-child=KILL --mount-proc bash ./script 2>&1",
    );
    let logs = place.run(
        "tail -n 5 provision.log kinit.log list.log; cat served; tail -n 30 $SANBOX_STATE/smb/log/*.log",
    );
    assert_eq!(
        said,
        "users of AD.EXAMPLE cannot log in: this machine has not joined it: 'sanbox smb join --user NAME'\n\
         session setup failed: NT_STATUS_LOGON_FAILURE\n\
         cannot join AD.EXAMPLE: Failed to join domain:\n\
         member of AD.EXAMPLE\n\
         tree connect failed: NT_STATUS_ACCESS_DENIED\n\
         session setup failed: NT_STATUS_LOGON_FAILURE\n\
         by-anna 1\nby-bert 1\nby-root 0\nby-ticket 1\n\
         1\n\
         users of AD.EXAMPLE cannot log in: this machine has not joined it: 'sanbox smb join --user NAME'\n\
         session setup failed: NT_STATUS_LOGON_FAILURE\n\
         0\n",
        "{logs}"
    );
}
