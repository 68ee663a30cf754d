//! The registry (attribute names, numbers, lengths) and the layouts (orders of attributes) of one file system.
//!
//! Both are small and read once. A layout that is not stored yet is added in a transaction of its own *before* the
//! transaction that uses it begins, so that no txg on disk can refer to a layout that a later txg brings.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::zap::{self, ZapSpec, ZapValue};
use dmu::{Objset, Tx};
use ondisk::sa::{
    self, ATTRIBUTES, Attribute, HEADER_SIZE_MAX, LAYOUT_FIRST, LAYOUT_MAX, LAYOUTS_KEY,
    REGISTRY_KEY, attr, header_size,
};
use ondisk::{ObjectId, ObjectType};

use super::ORDER;
use super::attrs::Attrs;
use super::registry::{Layout, Plan, Registry};
use crate::{FsError, FsResult};

const SPILL_MAX_BYTES: usize = 128 << 10;

/// Bytes of a dnode of so many slots that a bonus with one block pointer may take.
pub(crate) fn bonus_max(slots: u8) -> usize {
    usize::from(slots.max(1)) * 512 - 64 - 128
}

/// The orders of attributes an object needs, of which some may not be stored yet.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) bonus: Vec<u16>,
    pub(crate) spill: Vec<u16>,
}

/// The registry and layouts of one file system.
#[derive(Debug)]
pub(crate) struct SaTables {
    master: ObjectId,
    registry_object: Cell<Option<ObjectId>>,
    layouts_object: Cell<Option<ObjectId>>,
    registry: RefCell<Rc<Registry>>,
    layouts: RefCell<Vec<Option<Rc<Layout>>>>,
    by_attrs: RefCell<BTreeMap<Vec<u16>, Rc<Layout>>>,
}

impl SaTables {
    /// Makes the attribute master with the full registry and no layouts yet; layouts follow with their first use.
    pub(crate) async fn create(os: &Objset, tx: &Tx) -> FsResult<Self> {
        let master = zap::create(os, &ZapSpec::new(ObjectType::SA_MASTER_NODE), tx).await?;
        Ok(Self::empty(master))
    }

    fn empty(master: ObjectId) -> Self {
        Self {
            master,
            registry_object: Cell::new(None),
            layouts_object: Cell::new(None),
            registry: RefCell::default(),
            layouts: RefCell::default(),
            by_attrs: RefCell::default(),
        }
    }

    /// Reads the tables of an existing file system.
    pub(crate) async fn open(os: &Objset, master: ObjectId) -> FsResult<Self> {
        let tables = Self::empty(master);
        let registry = zap::lookup_u64(os, master, REGISTRY_KEY).await?;
        let layouts = zap::lookup_u64(os, master, LAYOUTS_KEY).await?;
        if let Some(object) = registry {
            tables.registry_object.set(Some(ObjectId(object)));
            let mut values = Vec::new();
            for entry in zap::entries(os, ObjectId(object)).await? {
                if values.len() > 4096 {
                    return Err(FsError::Corrupt("attribute registry is too large"));
                }
                let ZapValue::U64(value) = &entry.value else {
                    return Err(FsError::Corrupt("attribute registry value"));
                };
                values.push((entry.name, value.first().copied().unwrap_or(0)));
            }
            *tables.registry.borrow_mut() = Rc::new(Registry::from_values(&values)?);
        }
        if let Some(object) = layouts {
            tables.layouts_object.set(Some(ObjectId(object)));
            for entry in zap::entries(os, ObjectId(object)).await? {
                let number = std::str::from_utf8(&entry.name)
                    .ok()
                    .and_then(|n| n.parse::<u16>().ok());
                let Some(number) = number.filter(|&n| n <= LAYOUT_MAX) else {
                    return Err(FsError::Corrupt("attribute layout number"));
                };
                let ZapValue::U16(attrs) = entry.value else {
                    return Err(FsError::Corrupt("attribute layout value"));
                };
                tables.remember(Rc::new(Layout {
                    number,
                    attrs: attrs.into_boxed_slice(),
                }));
            }
        }
        Ok(tables)
    }

    /// Returns the object of the attribute master.
    pub(crate) fn master(&self) -> ObjectId {
        self.master
    }

    /// Returns the registry as of now.
    pub(crate) fn registry(&self) -> Rc<Registry> {
        Rc::clone(&self.registry.borrow())
    }

    /// Returns a layout by number.
    pub(crate) fn layout(&self, number: u16) -> FsResult<Rc<Layout>> {
        self.layouts
            .borrow()
            .get(usize::from(number))
            .cloned()
            .flatten()
            .ok_or(FsError::Corrupt("attribute layout is not stored"))
    }

    fn remember(&self, layout: Rc<Layout>) {
        let mut layouts = self.layouts.borrow_mut();
        let index = usize::from(layout.number);
        if layouts.len() <= index {
            layouts.resize(index + 1, None);
        }
        self.by_attrs
            .borrow_mut()
            .entry(layout.attrs.to_vec())
            .or_insert_with(|| Rc::clone(&layout));
        layouts[index] = Some(layout);
    }

    /// Decodes an object's bonus and spill block.
    pub(crate) fn decode(&self, bonus: &[u8], spill: Option<&[u8]>) -> FsResult<(Attrs, Plan)> {
        let registry = self.registry();
        let mut attrs = Attrs::new();
        let (bonus, bonus_layout) = self.native(bonus, &registry)?;
        attrs.decode_buffer(&bonus, &registry, &bonus_layout.attrs)?;
        let mut order = bonus_layout.attrs.to_vec();
        let mut spill_layout = None;
        if let Some(spill) = spill {
            let (spill, layout) = self.native(spill, &registry)?;
            attrs.decode_buffer(&spill, &registry, &layout.attrs)?;
            order.extend_from_slice(&layout.attrs);
            spill_layout = Some(layout);
        }
        attrs.order = Rc::from(order);
        let plan = Plan {
            bonus: bonus_layout,
            spill: spill_layout,
            bonus_len: bonus.len(),
        };
        Ok((attrs, plan))
    }

    /// Returns a buffer in this machine's byte order, with its layout: it may lie as a big-endian writer left it.
    fn native<'a>(
        &self,
        buffer: &'a [u8],
        registry: &Registry,
    ) -> FsResult<(Cow<'a, [u8]>, Rc<Layout>)> {
        if !sa::is_swapped(buffer) {
            return Ok((buffer.into(), self.layout(Attrs::layout_of(buffer)?)?));
        }
        let mut native = buffer.to_vec();
        sa::swap_header(&mut native);
        let layout = self.layout(Attrs::layout_of(&native)?)?;
        sa::swap_attributes(&mut native, &layout.attrs, |number| {
            registry.byteswap(number)
        })
        .map_err(|error| FsError::Corrupt(error.what))?;
        Ok((native.into(), layout))
    }

    /// Returns whether every attribute present has a registered number.
    pub(crate) fn is_registered(&self, attrs: &Attrs) -> bool {
        let registry = self.registry.borrow();
        ORDER
            .iter()
            .all(|&standard| !attrs.has(standard) || registry.number(standard).is_some())
    }

    /// Returns which attributes go to the bonus and which to the spill block.
    ///
    /// # Errors
    /// [`FsError::AttributeTooLarge`] when a value, or the spill block, cannot hold them.
    pub(crate) fn split(&self, attrs: &Attrs, bonus_max: usize) -> FsResult<Split> {
        attrs.check_lengths()?;
        let registry = self.registry.borrow();
        let order = order_of(attrs, &registry);
        let header_of = |numbers: &[u16]| {
            let is_variable = |&&n: &&u16| registry.length(n) == Some(0);
            header_size(numbers.iter().filter(is_variable).count())
        };
        let size_of = |numbers: &[u16]| -> usize {
            numbers.iter().fold(header_of(numbers), |at, &n| {
                at.next_multiple_of(8) + attrs.len_of_number(&registry, n)
            })
        };
        // A damaged file system may have registered any number of attributes, each without a byte.
        if header_of(&order) > HEADER_SIZE_MAX {
            return Err(FsError::AttributeTooLarge);
        }
        if size_of(&order) <= bonus_max {
            return Ok(Split {
                bonus: order,
                spill: Vec::new(),
            });
        }
        // The first attribute that does not fit beside the spill block's pointer starts the spill block.
        let room = bonus_max - 128;
        let fitting = (1..=order.len())
            .take_while(|&n| size_of(&order[..n]) <= room)
            .last()
            .unwrap_or(0);
        let spill = order[fitting..].to_vec();
        if size_of(&spill) > SPILL_MAX_BYTES {
            return Err(FsError::AttributeTooLarge);
        }
        let mut bonus = order;
        bonus.truncate(fitting);
        Ok(Split { bonus, spill })
    }

    /// Returns the plan of a split if all its layouts are stored.
    pub(crate) fn find(&self, split: &Split, bonus_max: usize) -> Option<Plan> {
        let by_attrs = self.by_attrs.borrow();
        let bonus = Rc::clone(by_attrs.get(&split.bonus)?);
        let spill = if split.spill.is_empty() {
            None
        } else {
            Some(Rc::clone(by_attrs.get(&split.spill)?))
        };
        Some(Plan {
            bonus,
            spill,
            bonus_len: bonus_max - 128,
        })
    }

    /// Registers all usual attributes that are not registered yet.
    pub(crate) async fn register(&self, os: &Objset, tx: &Tx) -> FsResult<()> {
        let object = if let Some(object) = self.registry_object.get() {
            object
        } else {
            let object =
                zap::create(os, &ZapSpec::new(ObjectType::SA_ATTR_REGISTRATION), tx).await?;
            zap::add_u64(os, self.master, REGISTRY_KEY, object.0, tx).await?;
            self.registry_object.set(Some(object));
            object
        };
        let old = self.registry();
        let mut next = old.len();
        let mut numbers = [0; ATTRIBUTES.len()];
        for (known, slot) in ATTRIBUTES.iter().zip(&mut numbers) {
            *slot = if let Some(number) = old.number(known.number) {
                number
            } else {
                let number = u16::try_from(next)
                    .map_err(|_| FsError::Corrupt("attribute registry is full"))?;
                next += 1;
                let value = Attribute { number, ..*known }.registry_value();
                zap::add_u64(os, object, known.name, value, tx).await?;
                number
            };
        }
        *self.registry.borrow_mut() = Rc::new(old.extended(next, numbers));
        Ok(())
    }

    /// Stores the layouts a split needs and returns its plan.
    pub(crate) async fn add(
        &self,
        os: &Objset,
        split: &Split,
        bonus_max: usize,
        tx: &Tx,
    ) -> FsResult<Plan> {
        let object = if let Some(object) = self.layouts_object.get() {
            object
        } else {
            let object = zap::create(os, &ZapSpec::new(ObjectType::SA_ATTR_LAYOUTS), tx).await?;
            zap::add_u64(os, self.master, LAYOUTS_KEY, object.0, tx).await?;
            self.layouts_object.set(Some(object));
            object
        };
        for attrs in [&split.bonus, &split.spill] {
            if attrs.is_empty() || self.by_attrs.borrow().contains_key(attrs) {
                continue;
            }
            let number = u16::try_from(self.layouts.borrow().len())
                .unwrap_or(u16::MAX)
                .max(LAYOUT_FIRST);
            if number > LAYOUT_MAX {
                return Err(FsError::NoSpace);
            }
            zap::add(
                os,
                object,
                number.to_string(),
                &ZapValue::U16(attrs.clone()),
                tx,
            )
            .await?;
            self.remember(Rc::new(Layout {
                number,
                attrs: attrs.clone().into_boxed_slice(),
            }));
        }
        self.find(split, bonus_max)
            .ok_or(FsError::Corrupt("a layout just stored is missing"))
    }
}

/// Returns registered numbers in the order to store them: as they are stored now, with those that are new behind.
fn order_of(attrs: &Attrs, registry: &Registry) -> Vec<u16> {
    let present = |number: u16| match registry.standard(number) {
        Some(standard) if attrs.has(standard) => true,
        _ => attrs.other.iter().any(|(n, _)| *n == number),
    };
    let mut order: Vec<u16> = Vec::with_capacity(24);
    let project = registry.number(attr::PROJID);
    // A project id has its place right behind the fixed attributes: where one is new, everything is put in order anew.
    let project_is_new =
        attrs.project.is_some() && project.is_some_and(|n| !attrs.order.contains(&n));
    if !project_is_new {
        order.extend(attrs.order.iter().copied().filter(|&n| present(n)));
    }
    for standard in ORDER {
        if let Some(number) = registry.number(standard)
            && attrs.has(standard)
            && !order.contains(&number)
        {
            order.push(number);
        }
    }
    for (number, _) in &attrs.other {
        if !order.contains(number) {
            order.push(*number);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        let values: Vec<(Vec<u8>, u64)> = ATTRIBUTES
            .iter()
            .map(|known| (known.name.as_bytes().to_vec(), known.registry_value()))
            .collect();
        Registry::from_values(&values).expect("dense")
    }

    fn tables() -> SaTables {
        let tables = SaTables::empty(ObjectId(32));
        *tables.registry.borrow_mut() = Rc::new(registry());
        tables
    }

    fn file() -> Attrs {
        let mut attrs = Attrs::new();
        attrs.mode = 0o100_644;
        attrs.size = 7;
        attrs.project = Some(0);
        attrs.acl_count = Some(3);
        attrs.acl = Some(Rc::from(&[1u8; 24][..]));
        attrs
    }

    /// Stores the layouts of a split the way `add` does, without an objset.
    fn plan(tables: &SaTables, split: &Split) -> Plan {
        for attrs in [&split.bonus, &split.spill] {
            if !attrs.is_empty() && !tables.by_attrs.borrow().contains_key(attrs) {
                let number = u16::try_from(tables.layouts.borrow().len())
                    .expect("few")
                    .max(LAYOUT_FIRST);
                tables.remember(Rc::new(Layout {
                    number,
                    attrs: attrs.clone().into_boxed_slice(),
                }));
            }
        }
        tables.find(split, bonus_max(1)).expect("just stored")
    }

    fn round_trip(tables: &SaTables, attrs: &Attrs) -> (usize, usize) {
        let split = tables.split(attrs, bonus_max(1)).expect("fits");
        let plan = plan(tables, &split);
        let (mut bonus, mut spill) = (Vec::new(), Vec::new());
        attrs.encode(&tables.registry(), &plan, &mut bonus, &mut spill);
        let (mut back, _) = tables
            .decode(&bonus, (!spill.is_empty()).then_some(&spill))
            .expect("decodes");
        back.order = Rc::clone(&attrs.order);
        assert_eq!(&back, attrs);
        (bonus.len(), spill.len())
    }

    /// The lengths are those zdb shows for objects made by OpenZFS.
    #[test]
    fn buffers_have_the_lengths_openzfs_gives_them() {
        let tables = tables();
        let mut attrs = file();
        assert_eq!(round_trip(&tables, &attrs), (176, 0));
        attrs.xattr = Some(9);
        assert_eq!(round_trip(&tables, &attrs), (184, 0));
        let mut link = file();
        link.project = None;
        assert_eq!(round_trip(&tables, &link), (168, 0));
        link.symlink = Some(Rc::from(&[b'l'; 60][..]));
        assert_eq!(round_trip(&tables, &link), (236, 0));
        link.symlink = Some(Rc::from(&[b'm'; 200][..]));
        assert_eq!(round_trip(&tables, &link), (192, 512));
        let mut big = file();
        big.dxattr = Some(Rc::from(&[3u8; 30080][..]));
        assert_eq!(round_trip(&tables, &big), (192, 30208));
        big.dxattr = Some(Rc::from(vec![0; 65536]));
        assert_eq!(
            tables.split(&big, bonus_max(1)).err(),
            Some(FsError::AttributeTooLarge)
        );
    }

    #[test]
    fn a_new_attribute_goes_last_and_a_new_project_id_to_its_place() {
        let tables = tables();
        let mut attrs = file();
        attrs.project = None;
        let split = tables.split(&attrs, bonus_max(1)).expect("fits");
        assert_eq!(split.bonus, [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19]);
        attrs.order = Rc::from(split.bonus);
        attrs.xattr = Some(4);
        let split = tables.split(&attrs, bonus_max(1)).expect("fits");
        assert_eq!(
            split.bonus,
            [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 9]
        );
        attrs.order = Rc::from(split.bonus);
        attrs.project = Some(7);
        let split = tables.split(&attrs, bonus_max(1)).expect("fits");
        assert_eq!(
            split.bonus,
            [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19, 9]
        );
    }

    #[test]
    fn hostile_buffers_are_refused() {
        let tables = tables();
        let attrs = file();
        let split = tables.split(&attrs, bonus_max(1)).expect("fits");
        let plan = plan(&tables, &split);
        let (mut bonus, mut spill) = (Vec::new(), Vec::new());
        attrs.encode(&tables.registry(), &plan, &mut bonus, &mut spill);
        for len in 0..bonus.len() {
            assert!(tables.decode(&bonus[..len], None).is_err(), "{len}");
        }
        for at in 0..8 {
            for bit in 0..8 {
                let mut bad = bonus.clone();
                bad[at] ^= 1 << bit;
                drop(tables.decode(&bad, None));
            }
        }
    }
}
