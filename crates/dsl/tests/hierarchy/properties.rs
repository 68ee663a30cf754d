//! Properties: values, where they come from, and what follows a rename.

use crate::rig::{check, run};

#[test]
fn a_value_is_inherited_until_it_is_set() {
    check(&[
        ("create p/a", ""),
        ("create p/a/b", ""),
        ("get compression p/a/b", "on default"),
        ("set p compression=lz4", ""),
        ("get compression p", "lz4 local"),
        ("get compression p/a/b", "lz4 inherited from p"),
        ("set p/a compression=zle", ""),
        ("get compression p/a/b", "zle inherited from p/a"),
        ("set p/a/b compression=off", ""),
        ("get compression p/a/b", "off local"),
        ("inherit compression p/a/b", ""),
        ("get compression p/a/b", "zle inherited from p/a"),
        ("inherit compression p/a", ""),
        ("get compression p/a/b", "lz4 inherited from p"),
        ("inherit compression p", ""),
        ("get compression p/a/b", "on default"),
    ]);
}

#[test]
fn a_renamed_dataset_inherits_from_its_new_parent() {
    check(&[
        ("create p/a atime=off", ""),
        ("create p/b", ""),
        ("create p/a/x", ""),
        ("get atime p/a/x", "off inherited from p/a"),
        ("rename p/a/x p/b/x", ""),
        ("get atime p/b/x", "on default"),
        ("rename p/a p/c", ""),
        ("rename p/b/x p/c/x", ""),
        ("get atime p/c/x", "off inherited from p/c"),
    ]);
}

#[test]
fn what_is_set_together_is_set_or_refused_together() {
    check(&[
        ("create p/a", ""),
        ("write p/a 4", ""),
        (
            "set p/a atime=off quota=1M",
            "size is less than current used or reserved space",
        ),
        ("get atime p/a", "on default"),
        ("get quota p/a", "0 default"),
        ("set p/a atime=off quota=100M", ""),
        ("get atime p/a", "off local"),
        ("get quota p/a", "104857600 local"),
    ]);
}

#[test]
fn user_properties_are_inherited_and_belong_to_snapshots_too() {
    check(&[
        ("create p/a org.example:use=home", ""),
        ("create p/a/b", ""),
        ("snapshot p/a@s", ""),
        ("get org.example:use p/a/b", "home inherited from p/a"),
        ("get org.example:use p/a@s", "home inherited from p/a"),
        ("set p/a@s org.example:use=old", ""),
        ("get org.example:use p/a@s", "old local"),
        ("get org.example:use p/a", "home local"),
        ("inherit org.example:use p/a", ""),
        ("get org.example:use p/a/b", "not there"),
    ]);
}

#[test]
fn properties_that_are_no_ones_own_are_not_set() {
    check(&[
        ("create p/a", ""),
        ("snapshot p/a@s", ""),
        ("set p/a used=5", "'used' is readonly"),
        ("set p/a nonsense=5", "invalid property 'nonsense'"),
        (
            "set p/a casesensitivity=mixed",
            "'casesensitivity' is readonly",
        ),
        ("inherit quota p/a", "'quota' property cannot be inherited"),
    ]);
}

#[test]
fn what_is_fixed_at_creation_is_handed_down_at_creation() {
    check(&[
        ("create p/a casesensitivity=insensitive", ""),
        ("create p/a/b", ""),
        ("get casesensitivity p/a/b", "insensitive -"),
        ("create p/c", ""),
        ("get casesensitivity p/c", "sensitive -"),
    ]);
}

#[test]
fn values_and_sources_are_what_they_were_after_the_next_import() {
    run(|mut rig| async move {
        rig.check(&[
            ("create p/a recordsize=64K org.example:use=home", ""),
            ("create p/a/b", ""),
            ("set p/a/b quota=64M", ""),
        ])
        .await;
        rig.reopen().await;
        rig.check(&[
            ("get recordsize p/a/b", "65536 inherited from p/a"),
            ("get org.example:use p/a", "home local"),
            ("get quota p/a/b", "67108864 local"),
            ("get copies p/a/b", "1 default"),
        ])
        .await;
    });
}

#[test]
fn an_open_dataset_sees_new_values_at_once() {
    run(|rig| async move {
        rig.check(&[("create p/a", ""), ("create p/a/b", "")]).await;
        let open = rig.hierarchy.dataset("p/a/b").await.expect("opens");
        let before = open.properties_version();
        let compression = || open.number(dsl::property::Property::Compression);
        assert_eq!(compression(), 1);
        rig.check(&[("set p/a compression=lz4", "")]).await;
        assert_eq!(compression(), 15, "inherited by an open dataset");
        assert!(open.properties_version() > before);
    });
}
