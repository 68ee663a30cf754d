#!/bin/bash
# A guest boots from a LUN by QEMU's own initiator: first the BIOS reads a boot sector of ours from it, which reads on from there
# and says what it found; then Linux has its root file system on a LUN. The LUN is filled by qemu-img, which checks it afterwards.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
iqn=iqn.2026-11.org.sanbox:boot; iscsi=${PORT:-12070}
qemu-img info "iscsi://127.0.0.1:1/$iqn/0" 2>&1 | grep -q 'Unknown' && skip "this QEMU has no iSCSI driver"
machine=${REALVM_CACHE:-$HOME/.cache/realvm}/current
truncate -s 2G "$w/disks/d0.img"
zpool create tank "$w/disks/d0.img"
bytes=$(stat -Lc %s "$machine/root.img")
zfs create -s -V 16M tank/bios; zfs create -s -V $(((bytes + (1 << 20) - 1) >> 20))M tank/root
sanbox target create $iqn; sanbox target map $iqn tank/bios --lun 0; sanbox target map $iqn tank/root --lun 1
zfs set org.sanbox:lun.sector=512n tank/bios
serve --nbd-port 0 --iscsi-port "$iscsi"
url() { echo "iscsi://127.0.0.1:$iscsi/$iqn/$1"; }

# Sector 0: read sector 1 by the BIOS, print it to the serial line, end the machine by the debug port.
cat >"$w/boot.s" <<'S'
.code16
start:  xor %ax, %ax
        mov %ax, %ds
        mov %ax, %es
        mov $packet, %si
        mov $0x42, %ah
        int $0x13
        jc end
        mov $0x8000, %si
next:   lodsb
        test %al, %al
        jz end
        mov %al, %ah
        mov $0x3fd, %dx
wait:   in %dx, %al
        test $0x20, %al
        jz wait
        mov %ah, %al
        mov $0x3f8, %dx
        out %al, %dx
        jmp next
end:    mov $0x501, %dx
        mov $0x10, %al
        out %al, %dx
        hlt
packet: .byte 16, 0
        .word 1, 0x8000, 0
        .quad 1
.org 510
        .word 0xaa55
S
as --32 -o "$w/boot.o" "$w/boot.s" && objcopy -O binary -j .text "$w/boot.o" "$w/boot.raw"
# The absolute addresses in it are those of 0x7c00, where the BIOS puts it.
ld -m elf_i386 -Ttext 0x7c00 -e 0x7c00 --oformat binary -o "$w/boot.raw" "$w/boot.o"
printf 'read from the LUN\n\0' >>"$w/boot.raw"; truncate -s 16M "$w/boot.raw"
qemu-img convert -n -t writeback -f raw -O raw "$w/boot.raw" "$(url 0)"
timeout 120 qemu-system-x86_64 -accel tcg -m 64 -nodefaults -display none -no-reboot -serial "file:$w/serial" \
  -device isa-debug-exit,iobase=0x501,iosize=1 -drive "file=$(url 0),format=raw,if=none,id=d" -device virtio-blk-pci,drive=d,bootindex=0 || true
grep -q 'read from the LUN' "$w/serial" || fail "the BIOS did not boot from the LUN: $(head -c 300 "$w/serial")"
echo "interop boot: the BIOS booted from a LUN"

qemu-img convert -n -t writeback -W -m 8 -f raw -O raw "$machine/root.img" "$(url 1)"
cat >"$w/guest" <<'G'
grep ' / ' /proc/mounts; sha256sum /usr/bin/bash | cut -d' ' -f1; lsblk -dno SIZE "/dev/$(lsblk -dno NAME | grep '^vda')"; echo GUEST-OK
G
REALVM_ROOT=$(url 1) "$root/tests/realvm/realvm" run "$w/guest" --no-zfs --no-net --timeout 300 >"$w/out" 2>"$w/err" || { tail -20 "$w/err" >&2; fail "the guest did not boot"; }
grep -q GUEST-OK "$w/out" || fail "the guest said: $(cat "$w/out")"
cat "$w/out"
truncate -s "$(zfs get -Hpo value volsize tank/root)" "$w/root.copy" && dd if="$machine/root.img" of="$w/root.copy" conv=notrunc,sparse bs=1M status=none
qemu-img compare -f raw -F raw "$w/root.copy" "$(url 1)" | grep -q identical || fail "the LUN is not what was written"
sessions=$(sanbox target sessions -H | wc -l); [ "$sessions" = 0 ] || fail "$sessions sessions are left"
stop
judge tank
echo "interop boot: Linux ran with its root file system on a LUN; the image is unchanged, zdb clean"
