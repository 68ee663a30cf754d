#!/bin/bash
# What people did with the appliances that inspired this one, in their own command lines, and what came of it:
#
#   san-in-a-box  a mirror for files and LUNs from one box: NFS beside COMSTAR's iSCSI, log device, snapshots by the day
#   nas           seven disks in a raidz2 with cache and log, for files and one large LUN
#   vmware        an NFS store for virtual machines: hosts by name, synchronous writes to a log device that goes away
#   moving-in     a pool that OpenZFS made is looked at, imported, shared, written to and handed back
#   rescue        what is left of a pool with a disk gone and bad sectors on another comes out, and the rest is named
#   hyper-v       LUNs for a cluster: CHAP, persistent reservations, two disks pulled at the limit of a raidz2
#
#   tests/interop/journeys.sh [JOURNEY...]      (default: all)
#   env SANBOX   the program
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || set -- san-in-a-box nas vmware hyper-v moving-in rescue
status=0
for journey in "$@"; do
  ended=0; "$here/journeys/$journey.sh" || ended=$?
  case $ended in
  0) echo "interop journeys: $journey passed" ;;
  77) [ $status != 0 ] || status=77 ;;
  *) echo "interop journeys: $journey FAILED" >&2; status=1 ;;
  esac
done
exit $status
