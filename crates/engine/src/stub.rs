//! Stand-in until `zpl` opens and fills file systems.
#![allow(clippy::unused_async, unused_variables, reason = "stand-in")]

pub(crate) async fn open_fs(
    dataset: dsl::Dataset,
    options: zpl::FsOptions,
) -> zpl::FsResult<zpl::Fs> {
    Err(zpl::FsError::NotSupported)
}

pub(crate) async fn create_root(
    objset: &dmu::Objset,
    tx: &dmu::Tx,
    props: &zpl::RootProps,
) -> zpl::FsResult<()> {
    Err(zpl::FsError::NotSupported)
}
