//! Somebody with the disk in hand, and without the keys: ciphertext that is moved or put back is an error with the file's name, never data.

use crate::cli::Place;

/// Where the first blocks of the three files lie on the disk, in units of 4 KiB: as zdb has it, and behind the labels (4 MiB).
fn places_of_files(place: &Place, dataset: &str) -> [u64; 3] {
    let said = place.run(&format!(
        "for object in $(sanbox sums {dataset} | awk '$3 == 19 {{ print $2 }}'); do \
         zdb -e -p $PWD -ddddd {dataset} $object | awk '$2 == \"L0\" {{ print $3; exit }}'; done"
    ));
    let offsets = said.lines().map(|dva| {
        let offset = dva.split(':').nth(1).unwrap_or_else(|| panic!("{said}"));
        let offset = u64::from_str_radix(offset, 16).unwrap_or_else(|_| panic!("{said}"));
        (offset + (4 << 20)) >> 12
    });
    let offsets: Vec<u64> = offsets.collect();
    offsets.try_into().unwrap_or_else(|_| panic!("{said}"))
}

#[test]
fn swapped_and_replayed_ciphertext_is_an_error_with_the_file_s_name() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    place.run(
        "truncate -s 256M disk && zpool create -O mountpoint=none tank $PWD/disk && head -c 32 /dev/urandom >key && \
         for n in f g h; do head -c 128K /dev/urandom >$n; done",
    );
    // With checksums these notice it; without, the MACs do.
    for checksum in ["on", "off"] {
        let fs = format!("tank/{checksum}");
        let made = place.run(&format!(
            "zfs create -o checksum={checksum} -o compression=off -o encryption=on -o keyformat=raw -o keylocation=file://$PWD/key {fs} && \
             for n in f g h; do sanbox put $n {fs}:/$n; done && zpool sync tank"
        ));
        assert_eq!(made, "");
        let [f, g, old] = places_of_files(&place, &fs);
        // What h was goes where h is afterwards.
        let kept = place.run(&format!(
            "dd if=disk of=old bs=4K skip={old} count=32 status=none && sanbox put g {fs}:/h && zpool sync tank"
        ));
        assert_eq!(kept, "");
        let [_, _, new] = places_of_files(&place, &fs);
        assert_ne!(old, new);
        place.stop();
        let swapped = place.run(&format!(
            "for at in {f} {g}; do dd if=disk of=$at bs=4K skip=$at count=32 status=none; done && \
             dd if={g} of=disk bs=4K seek={f} conv=notrunc status=none && dd if={f} of=disk bs=4K seek={g} conv=notrunc status=none && \
             dd if=old of=disk bs=4K seek={new} conv=notrunc status=none"
        ));
        assert_eq!(swapped, "");
        place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
        assert_eq!(place.run(&format!("zfs load-key {fs}")), "");
        for name in ["f", "g", "h"] {
            let said = place.run(&format!(
                "echo older >x; sanbox get {fs}:/{name} x 2>&1; echo $?; cat x; ls -A | grep sanbox-get; true"
            ));
            let wanted = format!("{fs}:/{name}: input/output error\n1\nolder\n");
            assert_eq!(said, wanted);
        }
        let told = place.run("zpool sync tank; zpool status -v tank | sed -n '/errors:/,$p'");
        for name in ["f", "g", "h"] {
            assert!(
                told.contains(&format!("{fs}:/{name}")),
                "{fs} {name}: {told}"
            );
        }
    }
}
