//! A new, empty file system: the objects OpenZFS expects, in the order it makes them.

use dmu::zap::{self, ZapSpec};
use dmu::{Objset, Tx};
use ondisk::ObjectType;

use crate::fs::{MASTER, TYPE_DIRECTORY, VERSION_SA};
use crate::sa::attrs::stored_time;
use crate::sa::{Attrs, BONUS_SA, BONUS_ZNODE, SaTables, layout, legacy};
use crate::setattr::set_trivial_acl;
use crate::znode::ACL_AUTO_INHERIT;
use crate::{CaseSensitivity, FileType, FsResult, RootProps, flags};

/// Fills an empty objset with a file system: master node, attribute tables, unlinked set and the root directory.
///
/// Runs under the transaction that makes the dataset, so that the dataset is never seen without a root.
///
/// # Errors
/// Those of the object layer; [`FsError::Exists`](crate::FsError::Exists) when the objset is not empty.
pub async fn create_root(os: &Objset, tx: &Tx, props: &RootProps) -> FsResult<()> {
    zap::create_at(os, MASTER, &ZapSpec::new(ObjectType::MASTER_NODE), tx).await?;
    let case = match props.case {
        CaseSensitivity::Sensitive => 0,
        CaseSensitivity::Insensitive => 1,
        CaseSensitivity::Mixed => 2,
    };
    let utf8_only = props.utf8_only || props.normalization != 0;
    zap::add_u64(os, MASTER, "VERSION", props.version, tx).await?;
    zap::add_u64(os, MASTER, "normalization", props.normalization, tx).await?;
    zap::add_u64(os, MASTER, "utf8only", u64::from(utf8_only), tx).await?;
    zap::add_u64(os, MASTER, "casesensitivity", case, tx).await?;
    let tables = if props.version >= VERSION_SA {
        let tables = SaTables::create(os, tx).await?;
        zap::add_u64(os, MASTER, "SA_ATTRS", tables.master().0, tx).await?;
        Some(tables)
    } else {
        None
    };
    let unlinked = zap::create(os, &ZapSpec::new(ObjectType::UNLINKED_SET), tx).await?;
    zap::add_u64(os, MASTER, "DELETE_QUEUE", unlinked.0, tx).await?;

    let mut attrs = root_attrs(props, tx);
    let normalization = props.normalization
        | if props.case == CaseSensitivity::Sensitive {
            0
        } else {
            0x02
        };
    let spec = ZapSpec {
        normalization,
        bonus: if tables.is_some() {
            (BONUS_SA, 168)
        } else {
            (BONUS_ZNODE, 264)
        },
        ..ZapSpec::new(TYPE_DIRECTORY)
    };
    let root = zap::create(os, &spec, tx).await?;
    attrs.parent = root.0;
    let Some(tables) = tables else {
        let record = legacy::encode(&attrs, props.version, 0)?;
        os.set_bonus(root, BONUS_ZNODE, &record, tx).await?;
        zap::add_u64(os, MASTER, "ROOT", root.0, tx).await?;
        return Ok(());
    };
    tables.register(os, tx).await?;
    let bonus_max = layout::bonus_max(1);
    let split = tables.split(&attrs, bonus_max)?;
    let plan = tables.add(os, &split, bonus_max, tx).await?;
    let (mut bonus, mut spill) = (Vec::new(), Vec::new());
    attrs.encode(&tables.registry(), &plan, &mut bonus, &mut spill);
    os.set_bonus(root, BONUS_SA, &bonus, tx).await?;
    zap::add_u64(os, MASTER, "ROOT", root.0, tx).await?;
    Ok(())
}

/// The attributes of the root directory, but for its parent.
fn root_attrs(props: &RootProps, tx: &Tx) -> Attrs {
    // The root directory has no project id, as in OpenZFS: it is made before accounting is set up.
    let mut attrs = Attrs::new();
    attrs.mode = FileType::Directory.mode_bits() | u64::from(props.mode & 0o7777);
    attrs.uid = u64::from(props.uid);
    attrs.gid = u64::from(props.gid);
    attrs.size = 2;
    attrs.links = 2;
    attrs.generation = tx.txg().0;
    let now = stored_time(props.now);
    (attrs.atime, attrs.mtime, attrs.ctime, attrs.crtime) = (now, now, now, now);
    attrs.flags = flags::ARCHIVE | flags::AV_MODIFIED | ACL_AUTO_INHERIT;
    if props.version < VERSION_SA {
        attrs.flags &= legacy::flags_known(props.version);
    }
    set_trivial_acl(&mut attrs);
    attrs
}
