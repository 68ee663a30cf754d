//! `sanbox access`: what it says of a user and a file is what the kernel does with that user through the mount, for files and
//! directories with modes, POSIX lists and NFSv4 lists chosen at random by seed.

use crate::cli::Place;
use crate::lists;

/// Makes files as a seed says, asks the kernel as three users what they may do and has them delete, and compares `sanbox access`.
const JUDGE: &str = r#"
import json, os, random, subprocess, sys
kind, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rnd = random.Random(seed)
USERS = [0, 3001, 3002]
MODES = [0o777, 0o700, 0o755, 0o644, 0o640, 0o711, 0o070, 0o007, 0o066, 0o421]

def as_user(uid, work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setgid(uid); os.setuid(uid)
        os.write(write, work().encode()); os._exit(0)
    os.close(write)
    said = os.read(read, 100).decode()
    os.close(read); os.waitpid(child, 0)
    return said

def may(path):
    return ''.join('ny'[os.access(path, how)] for how in (os.R_OK, os.W_OK, os.X_OK))

def deletes(path):
    try:
        os.unlink(path)
        return 'y'
    except OSError:
        return 'n'

def give(path, sticky):
    os.chown(path, rnd.choice(USERS), rnd.choice(USERS))
    os.chmod(path, rnd.choice(MODES) | (0o1000 if sticky else 0))
    if rnd.random() < 0.6:
        return
    if kind == 'posix':
        words = ['%s:%d:%s' % (rnd.choice('ug'), rnd.choice(USERS[1:]), rnd.choice(['r', 'w', 'x', 'rwx', '-'])) for _ in range(2)]
        words.append('m::' + rnd.choice(['r', 'rx', 'rwx']))
        subprocess.run(['setfacl', '-m', ','.join(words), path], check=True)
    else:
        who = ['3001', '3002', 'owner@', 'everyone@']
        words = ['%s:%s:0:%x' % (rnd.choice('AD'), rnd.choice(who), rnd.choice([1, 2, 0x20, 0x23, 0x10000, 0x40, 0x10063])) for _ in range(3)]
        subprocess.run([sys.executable, 'lists.py', 'set', path] + words + ['A:owner@:0:1e019f', 'A:everyone@:0:120081'], check=True)

bad = seen = 0
for at in range(count):
    dir, file = 'm/d%d' % at, 'm/d%d/f' % at
    os.mkdir(dir); open(file, 'w').close()
    give(file, False); give(dir, rnd.random() < 0.3)
    for uid in USERS:
        told = subprocess.run(['sanbox', 'access', str(uid), 'tank:/d%d/f' % at, '--json'], capture_output=True, check=True)
        told = json.loads(told.stdout)
        claimed = ''.join('ny'[answer['in_mount']] for answer in told['answers'])
        found = as_user(uid, lambda: may(file))
        back = os.path.join('m', 'kept%d' % at)
        os.link(file, back)
        found += as_user(uid, lambda: deletes(file))
        if not os.path.exists(file):
            os.link(back, file)
        os.unlink(back)
        seen += 1
        if claimed != found:
            bad += 1
            print(file, uid, oct(os.stat(dir).st_mode), oct(os.stat(file).st_mode), 'the kernel', found, 'told', claimed, told['answers'])
print('%d compared, %d differ' % (seen, bad))
"#;

/// The place of a test, with the judge in it.
fn place(acltype: &str) -> Option<Place> {
    let place = lists::place(acltype)?;
    std::fs::write(place.path("work/judge.py"), JUDGE).expect("writes");
    let has =
        place.run("command -v setfacl >/dev/null && command -v python3 >/dev/null && echo all");
    if has != "all\n" {
        tests::skip("sanbox access", "setfacl or python3 is not installed");
        return None;
    }
    place.run("chmod 755 m");
    Some(place)
}

#[test]
fn what_is_told_of_modes_and_posix_lists_is_what_the_kernel_does() {
    let Some(place) = place("posix") else { return };
    let judged = place.run("python3 judge.py posix 1 40 2>&1");
    assert_eq!(judged, "120 compared, 0 differ\n");
}

#[test]
fn what_is_told_of_nfsv4_lists_is_what_the_kernel_does() {
    let Some(place) = place("nfsv4") else { return };
    let judged = place.run("python3 judge.py nfsv4 2 40 2>&1");
    assert_eq!(judged, "120 compared, 0 differ\n");
}

#[test]
fn the_answer_says_what_decides() {
    let Some(mut place) = place("posix") else {
        return;
    };
    let told = |user: &str, path: &str| place.run(&format!("sanbox access -H {user} {path} 2>&1"));
    place.run(
        "umask 022; mkdir m/d m/closed; echo x > m/d/f; echo y > m/closed/f; chown 3001:3001 m/d/f; chmod 640 m/d/f; \
         chmod 700 m/closed; chmod 1777 m/d; setfacl -m u:3002:rwx,m::r m/d/f",
    );
    assert_eq!(
        told("3001", "tank:/d/f"),
        "read\tyes\tthe POSIX list gives the owner (uid 3001) rw-\n\
         write\tyes\tthe POSIX list gives the owner (uid 3001) rw-\n\
         execute\tno\tthe POSIX list gives the owner (uid 3001) rw-\n\
         delete\tyes\tof the directory /d: the mode gives everyone else rwx\n"
    );
    // By a path in the mounted dataset, too.
    assert_eq!(
        told("3002", "$PWD/m/d/f"),
        "read\tyes\tthe POSIX list gives user 3002 rwx, which its mask limits to r--\n\
         write\tno\tthe POSIX list gives user 3002 rwx, which its mask limits to r--\n\
         execute\tno\tthe POSIX list gives user 3002 rwx, which its mask limits to r--\n\
         delete\tno\tthe directory is sticky (t), and neither it nor the file belongs to the user\n"
    );
    let closed = told("3001", "tank:/closed/f");
    let line = "\tno\t/closed may not be passed: the mode gives everyone else ---\n";
    assert_eq!(
        closed,
        ["read", "write", "execute", "delete"]
            .map(|right| format!("{right}{line}"))
            .concat()
    );
    assert!(told("root", "tank:/d/f").starts_with("read\tyes\troot may\n"));
    place.run("zfs snapshot tank@s; zfs set exec=off tank; chmod 755 m/d/f");
    assert!(told("3001", "tank@s:/d/f").contains("write\tno\tnothing may be changed"));
    assert!(told("3001", "tank:/d/f").contains("execute\tno\tthe dataset has exec=off"));
    let notes = place.run("zfs set sharenfs=ro tank; sanbox access root tank:/ | tail -n 2");
    assert_eq!(
        notes,
        "By NFS nothing may be changed: sharenfs says ro.\nBy NFS root is nobody: sharenfs does not say no_root_squash.\n"
    );
    let none = told("nobody-of-this-name", "tank:/d/f");
    assert!(none.contains("is no user of this machine"), "{none}");
    assert!(told("3001", "tank:/nothing").contains("no such file"));
    place.stop();
}

/// What `sanbox acl` sets is what Linux's own tools read through the mount, and what these set is what it shows.
#[test]
fn posix_lists_that_are_typed_are_what_getfacl_reads() {
    let Some(mut place) = place("posix") else {
        return;
    };
    let check = |command: &str, wanted: &str| assert_eq!(place.run(command), wanted, "{command}");
    check(
        "umask 022; mkdir m/d; echo x > m/d/f; chown 3001:3002 m/d/f",
        "",
    );
    check(
        "sanbox acl set tank:/d/f u::rwx,u:3002:r-x,g::r--,g:3001:rw-,o::---; getfacl -nc m/d/f | xargs",
        "user::rwx user:3002:r-x group::r-- group:3001:rw- mask::rwx other::---\n",
    );
    check(
        "sanbox acl set tank:/d u::rwx,g::rx,o::rx,d:u::rwx,d:u:3001:rx,d:g::rx,d:o::-; getfacl -nc m/d | xargs",
        "user::rwx group::r-x other::r-x default:user::rwx default:user:3001:r-x default:group::r-x default:mask::r-x default:other::---\n",
    );
    check(
        "setfacl -m u:7:rw,m::r m/d/f; sanbox acl show tank:/d/f",
        "mode\t0740\nowner\t3001:3002\nu::rwx\nu:7:rw-\nu:3002:r-x\ng::r--\ng:3001:rw-\nm::r--\no::---\n",
    );
    check(
        "sanbox acl clear tank:/d/f; sanbox acl mode tank:/d/f 640; sanbox acl owner tank:/d/f :5; getfacl -nc m/d/f | xargs; \
         stat -c '%a %u:%g' m/d/f",
        "user::rw- group::r-- other::---\n640 3001:5\n",
    );
    check(
        "sanbox acl -n mode tank:/d/f 777; stat -c %a m/d/f",
        "now:\nmode\t0640\nowner\t3001:5\nnothing was changed\n640\n",
    );
    check(
        "sanbox acl set tank:/d u::rwx,g::rx,o::rx; getfacl -nc m/d | xargs",
        "user::rwx group::r-x other::r-x\n",
    );
    for (words, why) in [
        ("set tank:/d/f u::rw,u:1:r", "breaks a rule of its kind"),
        ("set tank:/d/f A::OWNER@:r", "takes no NFSv4 lists"),
        ("set tank:/d/f nonsense", "'nonsense' is no entry"),
        ("mode tank:/d/f 999", "'999' is no mode"),
        ("owner tank:/d/f ann", "in numbers"),
        ("show tank:/nothing", "no such file"),
        (
            "set tank:/d/f u::r,g::r,o::r,d:u::r,d:g::r,d:o::r",
            "of directories",
        ),
    ] {
        let said = place.run(&format!("sanbox acl {words}"));
        assert!(
            said.contains(why) && said.ends_with("]\n"),
            "{words}: {said}"
        );
    }
    place.run("zfs snapshot tank@s");
    check(
        "sanbox acl mode tank@s:/d/f 777 2>/dev/null; echo $?; sanbox acl show tank@s:/d/f | tail -n 1",
        "1\nowner\t3001:5\n",
    );
    place.stop();
}

/// NFSv4 lists: what is set is read by the tool of the tests from the attribute, and decides as the kernel and `sanbox access` say.
#[test]
fn nfsv4_lists_that_are_typed_are_stored_and_decide() {
    let Some(mut place) = place("nfsv4") else {
        return;
    };
    let check = |command: &str, wanted: &str| assert_eq!(place.run(command), wanted, "{command}");
    check(
        "umask 022; mkdir m/d; echo x > m/d/f; chown 3001:3001 m/d/f",
        "",
    );
    let list = "A::OWNER@:rwaDdxtTnNcCoy,D::3002:w,A:g:3001:rtncy,A::EVERYONE@:tcy";
    check(
        &format!("sanbox acl set tank:/d/f {list}; python3 lists.py show m/d/f"),
        "A owner@::0:1f01ff\nD 3002::0:2\nA 3001::40:120089\nA everyone@::0:120080\n",
    );
    check(
        "sanbox acl show tank:/d/f | tail -n +3 | xargs | tr ' ' ,",
        &format!("{list}\n"),
    );
    check(
        "sanbox acl set tank:/d A:fd:OWNER@:rwaDdxtTnNcCoy,A:fdg:3001:rxtncy,A:fdn:EVERYONE@:x; python3 lists.py show m/d; echo y > m/d/new; \
         python3 lists.py show m/d/new | sed -n 1,3p | cut -d: -f1 | xargs",
        "A owner@::3:1f01ff\nA 3001::43:1200a9\nA everyone@::7:20\nA owner@ A 3001 A everyone@\n",
    );
    check(
        "sanbox acl clear tank:/d/f; python3 lists.py show m/d/f | cut -c 1-10 | xargs",
        "A owner@:: A group@:: A everyone\n",
    );
    let said = place
        .run("sanbox acl set tank:/d/f u::rwx,g::r,o::r; sanbox acl set tank:/d/f A:fd:OWNER@:r");
    assert!(
        said.contains("takes no POSIX lists") && said.contains("breaks a rule"),
        "{said}"
    );
    place.stop();
}
