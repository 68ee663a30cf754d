//! Access control lists: POSIX lists set, checked and inherited through a FUSE mount and an NFS client, byte for byte those
//! of OpenZFS; NFSv4 lists as they are stored, through chmod under every `aclmode` and inheritance under `aclinherit`.

use tests::free_port;
use tests::golden::Golden;

use crate::cli::Place;
use crate::snapdir::can_mount;

/// Sets the NFSv4 list of `$1`, and shows one: kind, flags, rights and who of each entry.
const TOOL: &str = r#"
import os, struct, sys
NAME = 'system.nfs4_acl_xdr'
WHO = {(1, 1): 'owner@', (1, 2): 'group@', (1, 3): 'everyone@'}
def show(path):
    value = os.getxattr(path, NAME)
    flags, count = struct.unpack('>II', value[:8])
    for n in range(count):
        kind, how, special, mask, who = struct.unpack('>5I', value[8 + n * 20:28 + n * 20])
        print('%s %s:%s:%x:%x' % ('AD'[kind], WHO.get((special, who), who), '', how, mask))
def parse(word):
    kind, who, how, mask = word.split(':')
    special = {'owner@': 1, 'group@': 2, 'everyone@': 3}
    pair = (1, special[who]) if who in special else (0, int(who))
    return struct.pack('>5I', 'AD'.index(kind), int(how, 16), pair[0], int(mask, 16), pair[1])
if sys.argv[1] == 'show':
    show(sys.argv[2])
else:
    words = sys.argv[3:]
    os.setxattr(sys.argv[2], NAME, struct.pack('>II', 0, len(words)) + b''.join(map(parse, words)))
"#;

pub(crate) fn place(acltype: &str) -> Option<Place> {
    let mut place = Place::new();
    if !can_mount(&place) {
        return None;
    }
    std::fs::write(place.path("work/lists.py"), TOOL).expect("writes");
    serve(&mut place);
    let made = place.run(&format!(
        "chmod 755 . .. 2>&1; truncate -s 256M a && zpool create -O mountpoint=$PWD/m -O acltype={acltype} tank $PWD/a && \
         (zfs mount tank 2>/dev/null; true) && stat -f -c %T m"
    ));
    assert_eq!(made, "fuseblk\n", "mounted");
    Some(place)
}

fn serve(place: &mut Place) {
    let port = free_port().to_string();
    place.serve(&["--nfs-port", &port, "--listen", "127.0.0.1", "--no-portmap"]);
}

fn as_user(uid: u32, groups: &str, command: &str) -> String {
    format!(
        "setpriv --reuid {uid} --regid {uid} --groups {groups} sh -c '{command}' 2>&1 | sed 's/.*: //'"
    )
}

#[test]
fn posix_lists_are_kept_checked_and_inherited() {
    let Some(mut place) = place("posix") else {
        return;
    };
    if !place
        .run("command -v setfacl && command -v getfacl && command -v setpriv")
        .ends_with("setpriv\n")
    {
        tests::skip("POSIX lists", "setfacl or setpriv is not installed");
        return;
    }
    let check = |command: &str, wanted: &str| assert_eq!(place.run(command), wanted, "{command}");
    let stored = |path: &str, kind: &str| {
        let name = format!("system.posix_acl_{kind}");
        place.run(&format!(
            "python3 -c \"import os,base64;print(base64.b64encode(os.getxattr('{path}','{name}')).decode())\""
        ))
    };
    // What golden pool o-features has of OpenZFS after the same commands.
    check(
        "umask 022; head -c 100 /dev/zero > m/acl; mkdir m/d; setfacl -m u:1000:rwx,g:1001:r m/acl; setfacl -d -m u:1002:rx m/d; \
         head -c 50 /dev/zero > m/d/inherits; stat -c '%a %n' m/acl m/d m/d/inherits",
        "674 m/acl\n755 m/d\n644 m/d/inherits\n",
    );
    assert_eq!(
        stored("m/acl", "access"),
        "AgAAAAEABgD/////AgAHAOgDAAAEAAQA/////wgABADpAwAAEAAHAP////8gAAQA/////w==\n"
    );
    assert_eq!(
        stored("m/d", "default"),
        "AgAAAAEABwD/////AgAFAOoDAAAEAAUA/////xAABQD/////IAAFAP////8=\n"
    );
    assert_eq!(
        stored("m/d/inherits", "access"),
        "AgAAAAEABgD/////AgAFAOoDAAAEAAUA/////xAABAD/////IAAEAP////8=\n"
    );
    // Checked: a user, a group, the mask, and somebody without an entry.
    check(
        "echo secret > m/f; chmod 600 m/f; setfacl -m u:1000:rw,g:1001:r m/f; getfacl -nc m/f | xargs",
        "user::rw- user:1000:rw- group::--- group:1001:r-- mask::rw- other::---\n",
    );
    check(
        &as_user(1000, "1000", "cat m/f && echo more >> m/f"),
        "secret\n",
    );
    check(&as_user(1005, "1001", "cat m/f"), "secret\nmore\n");
    check(
        &as_user(1005, "1001", "echo x >> m/f"),
        "Permission denied\n",
    );
    check(&as_user(1005, "1005", "cat m/f"), "Permission denied\n");
    // A mode sets the mask, and a list the mode.
    check(
        "chmod 640 m/f; getfacl -nc m/f | xargs",
        "user::rw- user:1000:rw- #effective:r-- group::--- group:1001:r-- mask::r-- other::---\n",
    );
    check(
        &as_user(1000, "1000", "echo x >> m/f"),
        "Permission denied\n",
    );
    check("setfacl -m m::rw m/f; stat -c %a m/f", "660\n");
    check(
        &as_user(1000, "1000", "echo again >> m/f && tail -n 1 m/f"),
        "again\n",
    );
    check(
        &as_user(1000, "1000", "setfacl -m u:1000:rwx m/f"),
        "Operation not permitted\n",
    );
    check(
        "setfacl -b m/f; stat -c %a m/f; getfacl -nc m/f | xargs; python3 -c \"import os;print(os.listxattr('m/f'))\"",
        "600\nuser::rw- group::--- other::---\n[]\n",
    );
    // Directories hand lists down; with one, the umask does not count.
    check(
        "umask 077; setfacl -k m/d; setfacl -d -m u:1000:rwx,g::rx,o::- m/d; mkdir m/d/e; touch m/d/e/f; getfacl -nc m/d/e m/d/e/f | xargs",
        "user::rwx user:1000:rwx group::r-x mask::rwx other::--- default:user::rwx default:user:1000:rwx default:group::r-x \
         default:mask::rwx default:other::--- user::rw- user:1000:rwx #effective:rw- group::r-x #effective:r-- mask::rw- other::---\n",
    );
    check(
        "setfacl -k m/d; umask 022; touch m/d/plain; stat -c %a m/d/plain; setfacl -k m/d",
        "644\n",
    );
    // Kept by a directory of attributes too, through a remount and the server's restart.
    check(
        "zfs create -o xattr=dir tank/dir; (zfs mount tank/dir 2>/dev/null; true); setfacl -d -m u:1000:rwx m/dir; touch m/dir/f; \
         chmod 604 m/dir/f; getfacl -nc m/dir/f | xargs; zfs unmount tank/dir; zfs mount tank/dir; getfacl -nc m/dir/f | xargs",
        &"user::rw- user:1000:rwx #effective:--- group::r-x #effective:--- mask::--- other::r--\n"
            .repeat(2),
    );
    // Without the property there are none, and those stored come back with it.
    check(
        "setfacl -m u:1000:rw m/f; zfs set acltype=off tank; getfacl -nc m/f | xargs; setfacl -m u:1001:r m/f 2>&1 | sed 's/.*: //'",
        "user::rw- group::rw- other::---\nOperation not supported\n",
    );
    check(
        "zfs set acltype=posix tank; getfacl -nc m/f | xargs",
        "user::rw- user:1000:rw- group::--- mask::rw- other::---\n",
    );
    check("zfs unmount -a; zpool export tank 2>&1", "");
    place.stop();
    check_with_zdb(&place);
}

fn check_with_zdb(place: &Place) {
    if !tests::oracle::has_zdb() {
        return;
    }
    let said = place.run("zdb -e -p $PWD -bcc tank > zdb.txt 2>&1 || cat zdb.txt; zdb -e -p $PWD -dddd tank > zdb.txt 2>&1 || tail -n 20 zdb.txt");
    assert_eq!(said, "");
}

/// The entries that a mode of a file stands for, as the tool shows them.
fn of_mode(owner: &str, group: &str, everyone: &str) -> String {
    format!("A owner@::0:{owner}\nA group@::40:{group}\nA everyone@::0:{everyone}\n")
}

#[test]
fn nfsv4_lists_are_kept_checked_and_inherited() {
    let Some(mut place) = place("nfsv4") else {
        return;
    };
    let check = |command: &str, wanted: &str| assert_eq!(place.run(command), wanted, "{command}");
    let plain = of_mode("1e019f", "120089", "120089");
    check(
        "umask 022; echo secret > m/f; python3 lists.py show m/f",
        &plain,
    );
    // Checked: user 1000 may not read although the mode would let him, 1001 may change the mode.
    let set = "python3 lists.py set m/f D:1000:0:1 A:1001:0:40000 A:owner@:0:1e019f A:group@:0:120089 A:everyone@:0:120089";
    check(&format!("{set}; stat -c %a m/f"), "644\n");
    check(&as_user(1000, "1000", "cat m/f"), "Permission denied\n");
    check(&as_user(1005, "1005", "cat m/f"), "secret\n");
    check(
        &as_user(1005, "1005", "chmod 600 m/f"),
        "Operation not permitted\n",
    );
    // A list decides the mode.
    check(
        "python3 lists.py set m/f A:owner@:0:1e01bf A:everyone@:0:1200a9; stat -c %a m/f",
        "755\n",
    );
    // chmod, as aclmode says.
    let entries = "D 1000::0:1\nA 1001::0:40003\n";
    let after = |mode: &str| {
        place.run(&format!(
            "zfs set aclmode={mode} tank; {set} && python3 lists.py set m/f D:1000:0:1 A:1001:0:40003 A:owner@:0:1e019f A:group@:0:120089 \
             A:everyone@:0:120089 && chmod 640 m/f 2>&1 | sed 's/.*: //'; stat -c %a m/f; python3 lists.py show m/f"
        ))
    };
    let of_640 = of_mode("1e019f", "120089", "120088");
    assert_eq!(after("discard"), format!("640\n{of_640}"));
    assert_eq!(after("passthrough"), format!("640\n{entries}{of_640}"));
    assert_eq!(
        after("groupmask"),
        format!("640\nD 1000::0:1\nA 1001::0:1\n{of_640}")
    );
    assert_eq!(
        after("restricted"),
        format!("Operation not permitted\n644\n{entries}{plain}")
    );
    // Inheritance: for files and directories (3), for files alone (1).
    check(
        "mkdir m/d && python3 lists.py set m/d A:1000:3:c0021 D:1001:1:2 A:owner@:0:1e01ff A:group@:0:1200a9 A:everyone@:0:1200a9",
        "",
    );
    let made = |how: &str| {
        place.run(&format!(
            "umask 022; zfs set aclmode=discard aclinherit={how} tank; rm -rf m/d/f m/d/e; touch m/d/f; mkdir m/d/e; \
             for n in m/d/f m/d/e; do stat -c %a $n; python3 lists.py show $n | grep -v @; done; true"
        ))
    };
    assert_eq!(made("discard"), "644\n755\n");
    assert_eq!(made("noallow"), "644\nD 1001::80:2\n755\nD 1001::89:2\n");
    assert_eq!(
        made("restricted"),
        "644\nA 1000::80:21\nD 1001::80:2\n755\nA 1000::83:21\nD 1001::89:2\n"
    );
    assert_eq!(
        made("passthrough"),
        "644\nA 1000::80:c0021\nD 1001::80:2\n755\nA 1000::83:c0021\nD 1001::89:2\n"
    );
    assert_eq!(
        made("passthrough-x"),
        "644\nA 1000::80:c0001\nD 1001::80:2\n755\nA 1000::83:c0021\nD 1001::89:2\n"
    );
    // Refused: a list that breaks a rule, and POSIX lists.
    check(
        "python3 lists.py set m/f A:1000:8:1 2>&1 | tail -n 1 | cut -d: -f1",
        "OSError\n",
    );
    check(
        "setfacl -m u:1000:r m/f 2>&1 | sed 's/.*: //'",
        "Operation not supported\n",
    );
    // What is acknowledged is there after a kill.
    check(
        "zfs set aclmode=passthrough tank; zpool sync tank; \
           python3 lists.py set m/f D:1000:0:1 A:owner@:0:1e019f A:everyone@:0:120089; touch m/d/late; sync m/f m/d/late m/d",
        "",
    );
    let before = place.run("python3 lists.py show m/f; python3 lists.py show m/d/late");
    place.kill();
    place.run("umount -l m");
    serve(&mut place);
    place.run("zfs mount tank");
    assert_eq!(
        place.run("python3 lists.py show m/f; python3 lists.py show m/d/late"),
        before
    );
    place.run("zfs unmount -a; zpool export tank");
    place.stop();
    check_with_zdb(&place);
}

/// POSIX lists of a pool that OpenZFS made, checked by the kernel through our mount.
#[test]
fn lists_of_a_golden_pool_are_in_force() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    let golden = Golden::unpack("o-features").expect("unpacks");
    serve(&mut place);
    let opened = place.run(&format!(
        "zpool import -N -d {} o-features 2>&1 && \
         zfs set mountpoint=$PWD/p o-features/posixacl && (zfs mount o-features/posixacl 2>/dev/null; true); chmod 755 p && \
         getfacl -nc p/acl p/d/inherits | xargs",
        golden.directory().display()
    ));
    assert_eq!(
        opened,
        "user::rw- user:1000:rwx group::r-- group:1001:r-- mask::rwx other::r-- \
         user::rw- user:1002:r-x #effective:r-- group::r-x #effective:r-- mask::r-- other::r--\n"
    );
    place.run("zfs unmount -a; zpool export o-features");
    place.stop();
}
