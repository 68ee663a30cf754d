#!/bin/sh
# Makes a realm of Kerberos (MIT) in the current directory and starts its KDC at a port of loopback; nothing of the machine is changed.
#   kdc.sh PORT     SANBOX.TEST in krb5.conf; nfs.keytab with nfs/localhost; tickets of daemon, root, stranger and host/client in NAME.ccache
#                   (10 h), those of bin for some seconds; the process id in kdc.pid
set -eu
port=$1
cat >krb5.conf <<C
[libdefaults]
  default_realm = SANBOX.TEST
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  clockskew = 2
[realms]
  SANBOX.TEST = {
    kdc = 127.0.0.1:$port
  }
C
cat >kdc.conf <<C
[kdcdefaults]
  kdc_listen = 127.0.0.1:$port
  kdc_tcp_listen = 127.0.0.1:$port
[realms]
  SANBOX.TEST = {
    database_name = $PWD/principals
    key_stash_file = $PWD/stash
    acl_file = $PWD/acl
    max_life = 12h
  }
[logging]
  kdc = FILE:$PWD/kdc.log
C
export KRB5_CONFIG=$PWD/krb5.conf KRB5_KDC_PROFILE=$PWD/kdc.conf
PATH=$PATH:/usr/sbin:/sbin
kdb5_util create -s -r SANBOX.TEST -P secret >kdb.log
for user in daemon root stranger host/client; do kadmin.local -q "addprinc -pw secret $user" >>kdb.log 2>&1; done
kadmin.local -q "addprinc -pw secret bin" >>kdb.log 2>&1
kadmin.local -q "addprinc -randkey nfs/localhost" >>kdb.log 2>&1
kadmin.local -q "addprinc -randkey nfs/127.0.0.1" >>kdb.log 2>&1
kadmin.local -q "ktadd -k $PWD/nfs.keytab nfs/localhost nfs/127.0.0.1" >>kdb.log 2>&1
krb5kdc -n -P "$PWD/kdc.pid" >>kdb.log 2>&1 </dev/null &
for user in daemon root stranger host/client; do
  for _ in $(seq 50); do
    echo secret | kinit -c "FILE:$PWD/$(basename $user).ccache" -l 10h $user >>kdb.log 2>&1 && continue 2
    sleep 0.1
  done
  tail -5 kdb.log >&2
  exit 1
done
