//! The table of properties, its texts and numbers.

use super::*;

fn number(text: &str, expect: Result<u64, PropertyError>) {
    assert_eq!(parse_number(text), expect, "{text}");
}

#[test]
fn numbers() {
    number("0", Ok(0));
    number("1", Ok(1));
    number("10k", Ok(10240));
    number("10K", Ok(10240));
    number("10KB", Ok(10240));
    number("10KiB", Ok(10240));
    number("1.5G", Ok(1_610_612_736));
    number(".5M", Ok(524_288));
    number("7B", Ok(7));
    number("7BB", Err(PropertyError::BadSuffix("BB".into())));
    number("7Q", Err(PropertyError::BadSuffix("Q".into())));
    number("x", Err(PropertyError::BadNumber("x".into())));
    number("", Err(PropertyError::BadNumber(String::new())));
    number("16E", Err(PropertyError::NumberTooLarge));
    number("15E", Ok(15 << 60));
    number("1Z", Err(PropertyError::NumberTooLarge));
    number("99999999999999999999", Err(PropertyError::NumberTooLarge));
    number("16.0E", Err(PropertyError::NumberTooLarge));
}

#[test]
fn nice_forms() {
    for (n, text) in [
        (0, "0B"),
        (1, "1B"),
        (1023, "1023B"),
        (1024, "1K"),
        (1536, "1.50K"),
        (10239, "10.0K"),
        (102_400, "100K"),
        (102_401, "100K"),
        (1_048_575, "1024K"),
        (1_048_577, "1.00M"),
        (8_900_608, "8.49M"),
        (u64::MAX, "16.0E"),
    ] {
        assert_eq!(nice_bytes(n), text);
    }
    let check = |number: u64, text: &str| assert_eq!(nice_number(number), text, "{number}");
    check(0, "0");
    check(1, "1");
    check(1023, "1023");
    check(1024, "1K");
    check(126_976, "124K");
    check(1536, "1.50K");
    check(10_240_512, "9.77M");
    check(100 * 1024 * 1024 + 512 * 1024, "100M");
    check(1 << 40, "1T");
    check(131_072, "128K");
}

#[test]
fn table_is_indexed_by_property() {
    for (i, d) in PROPERTIES.iter().enumerate() {
        assert_eq!(d.property as usize, i, "{}", d.name);
        assert_eq!(Property::from_name(d.name), Some(d.property));
        if d.value_type == PropertyType::Index {
            assert!(!d.index.is_empty(), "{}", d.name);
        }
    }
    assert_eq!(Property::from_name("avail"), Some(Property::Available));
    assert_eq!(Property::from_name("compress"), Some(Property::Compression));
    assert_eq!(Property::from_name("refer"), Some(Property::Referenced));
    assert_eq!(Property::from_name("recsize"), Some(Property::RecordSize));
    assert_eq!(Property::from_name("AVAIL"), None);
}

/// The names `zfs get all` showed for real datasets of each kind (golden pools h-snapshots and
/// i-zvols), in its order.
#[test]
fn order_and_kinds_are_those_of_the_real_command() {
    let filesystem = "type creation used available referenced compressratio mounted quota \
        reservation recordsize mountpoint sharenfs checksum compression atime devices exec setuid \
        readonly zoned snapdir aclmode aclinherit createtxg canmount xattr copies version utf8only \
        normalization casesensitivity vscan nbmand sharesmb refquota refreservation guid \
        primarycache secondarycache usedbysnapshots usedbydataset usedbychildren \
        usedbyrefreservation logbias objsetid dedup mlslabel sync dnodesize refcompressratio \
        written logicalused logicalreferenced volmode filesystem_limit snapshot_limit \
        filesystem_count snapshot_count snapdev acltype context fscontext defcontext rootcontext \
        relatime redundant_metadata overlay encryption keylocation keyformat pbkdf2iters \
        special_small_blocks prefetch direct longname";
    let volume = "type creation used available referenced compressratio reservation volsize \
        volblocksize checksum compression readonly createtxg copies refreservation guid \
        primarycache secondarycache usedbysnapshots usedbydataset usedbychildren \
        usedbyrefreservation logbias objsetid dedup mlslabel sync refcompressratio written \
        logicalused logicalreferenced volmode snapshot_limit snapshot_count snapdev context \
        fscontext defcontext rootcontext redundant_metadata encryption keylocation keyformat \
        pbkdf2iters prefetch volthreading";
    let snapshot = "type creation used referenced compressratio devices exec setuid createtxg \
        xattr version utf8only normalization casesensitivity nbmand guid primarycache \
        secondarycache defer_destroy userrefs objsetid mlslabel refcompressratio written \
        logicalreferenced acltype context fscontext defcontext rootcontext encryption prefetch";
    for (kind, expect) in [
        (DatasetKind::Filesystem, filesystem),
        (DatasetKind::Volume, volume),
        (DatasetKind::Snapshot, snapshot),
    ] {
        // Properties that show only when they have a value were left out of the lists above.
        let sometimes = [
            Property::Origin,
            Property::Clones,
            Property::ReceiveResumeToken,
            Property::EncryptionRoot,
            Property::KeyStatus,
            Property::RedactSnaps,
            Property::SnapshotsChanged,
        ];
        let mut names: Vec<&str> = PROPERTIES
            .iter()
            .filter(|d| d.visible && d.property.applies_to(kind))
            .filter(|d| !sometimes.contains(&d.property))
            .map(|d| d.name)
            .collect();
        if kind == DatasetKind::Snapshot {
            names.retain(|n| *n != "volsize");
        }
        assert_eq!(
            names,
            expect.split_whitespace().collect::<Vec<_>>(),
            "{kind}"
        );
    }
}

#[test]
fn index_values_show_their_first_name() {
    for (p, text, shown) in [
        (Property::Compression, "gzip-6", "gzip"),
        (Property::Compression, "zstd-3", "zstd-3"),
        (Property::Compression, "zstd-fast-1", "zstd-fast"),
        (Property::Compression, "zstd-fast-1000", "zstd-fast-1000"),
        (Property::Xattr, "sa", "on"),
        (Property::AclType, "posixacl", "posix"),
        (Property::AclInherit, "secure", "restricted"),
        (Property::Dedup, "sha256,verify", "sha256,verify"),
        (Property::VolMode, "geom", "full"),
    ] {
        let n = p.index_number(text).expect("a value of the table");
        assert_eq!(display(p, &Value::Number(n), false), shown);
    }
}

fn set(name: &str, text: &str, kind: DatasetKind, creating: bool) -> Result<Setting, String> {
    let context = SetContext {
        kind,
        creating,
        block_max: BLOCK_MAX,
    };
    parse_setting(name, text, context).map_err(|e| e.to_string())
}

#[test]
fn settings() {
    use DatasetKind::{Filesystem, Snapshot, Volume};
    let check = |name: &str, text: &str, kind, creating, expect: Result<(Property, u64), &str>| {
        let expect = expect
            .map(|(p, n)| Setting::Native(p, Value::Number(n)))
            .map_err(str::to_owned);
        assert_eq!(set(name, text, kind, creating), expect, "{name}={text}");
    };
    check(
        "compression",
        "lz4",
        Filesystem,
        false,
        Ok((Property::Compression, 15)),
    );
    check(
        "compress",
        "zstd",
        Filesystem,
        false,
        Ok((Property::Compression, 16)),
    );
    check(
        "quota",
        "10G",
        Filesystem,
        false,
        Ok((Property::Quota, 10 << 30)),
    );
    check("quota", "none", Filesystem, false, Ok((Property::Quota, 0)));
    check(
        "quota",
        "0",
        Filesystem,
        false,
        Err("use 'none' to disable quota/refquota"),
    );
    check(
        "filesystem_limit",
        "none",
        Filesystem,
        false,
        Ok((Property::FilesystemLimit, u64::MAX)),
    );
    check(
        "quota",
        "1G",
        Volume,
        false,
        Err("'quota' does not apply to datasets of this type"),
    );
    check("used", "1", Filesystem, false, Err("'used' is readonly"));
    check(
        "casesensitivity",
        "mixed",
        Filesystem,
        false,
        Err("'casesensitivity' is readonly"),
    );
    check(
        "casesensitivity",
        "mixed",
        Filesystem,
        true,
        Ok((Property::CaseSensitivity, 2)),
    );
    check(
        "nosuch",
        "1",
        Filesystem,
        false,
        Err("invalid property 'nosuch'"),
    );
    check(
        "atime",
        "maybe",
        Filesystem,
        false,
        Err("'atime' must be one of 'on | off'"),
    );
    check(
        "recordsize",
        "100k",
        Filesystem,
        false,
        Err("'recordsize' must be power of 2 from 512B to 16M"),
    );
    check(
        "recordsize",
        "1M",
        Filesystem,
        false,
        Ok((Property::RecordSize, 1 << 20)),
    );
    check(
        "recordsize",
        "1x",
        Filesystem,
        false,
        Err("invalid numeric suffix 'x'"),
    );
    check(
        "atime",
        "on",
        Snapshot,
        false,
        Err("this property can not be modified for snapshots"),
    );
    check(
        "written@a",
        "1",
        Filesystem,
        false,
        Err("'written@a' is readonly"),
    );
    check(
        "userused@1",
        "1",
        Filesystem,
        false,
        Err("'userused@1' is readonly"),
    );
    check(
        "refreservation",
        "auto",
        Filesystem,
        false,
        Err("'refreservation=auto' only allowed on volumes"),
    );
    check(
        "mountpoint",
        "relative",
        Filesystem,
        false,
        Err("'mountpoint' must be an absolute path, 'none', or 'legacy'"),
    );
    assert_eq!(
        set("userquota@1000", "5M", Filesystem, false),
        Ok(Setting::UserQuota("userquota@", "1000".into(), 5 << 20))
    );
    assert_eq!(
        set("org.example:note", "hello", Snapshot, false),
        Ok(Setting::User("org.example:note".into(), "hello".into()))
    );
    assert!(set("Org.example:note", "hello", Filesystem, false).is_err());
}

#[test]
fn normalization_asks_for_utf8() {
    let mut settings = vec![Setting::Native(
        Property::Normalization,
        Value::Number(0x10),
    )];
    complete_settings(&mut settings).expect("nothing was refused");
    assert!(settings.contains(&Setting::Native(Property::Utf8Only, Value::Number(1))));
    settings[1] = Setting::Native(Property::Utf8Only, Value::Number(0));
    assert_eq!(
        complete_settings(&mut settings),
        Err(PropertyError::Utf8Needed)
    );
}

#[test]
fn display_forms() {
    let check = |p: Property, n: u64, literal: &str, nice: &str| {
        assert_eq!(display(p, &Value::Number(n), true), literal);
        assert_eq!(display(p, &Value::Number(n), false), nice);
    };
    check(Property::Quota, 0, "0", "none");
    check(Property::Quota, 20_971_520, "20971520", "20M");
    check(Property::Used, 0, "0", "0B");
    check(Property::LogicalUsed, 15_649_792, "15649792", "14.9M");
    check(Property::CompressRatio, 390, "3.90", "3.90x");
    check(Property::FilesystemLimit, u64::MAX, "none", "none");
    check(Property::SnapshotLimit, 90, "90", "90");
    check(Property::Mounted, 1, "yes", "yes");
    check(
        Property::Guid,
        4_050_330_786_468_911_226,
        "4050330786468911226",
        "4050330786468911226",
    );
    check(Property::RecordSize, 131_072, "131072", "128K");
    check(Property::Encryption, 2, "off", "off");
    check(Property::Normalization, 0x10, "formD", "formD");
}
