//! The numbers and lengths that a file system gave its attributes, and orders of attributes, as values without I/O.

use std::rc::Rc;

use ondisk::sa::{
    ATTRIBUTES, Attribute, SaByteswap, byteswap_of_registry_value, decode_registry_value,
};

use crate::{FsError, FsResult};

/// One order of attributes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) number: u16,
    pub(crate) attrs: Box<[u16]>,
}

/// Where the attributes of an object go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) bonus: Rc<Layout>,
    pub(crate) spill: Option<Rc<Layout>>,
    /// Bytes of the bonus when there is a spill block.
    pub(crate) bonus_len: usize,
}

impl Plan {
    /// The plan of file systems whose files have records of fixed form.
    pub(crate) fn of_records() -> Self {
        Self {
            bonus: Rc::new(Layout {
                number: 0,
                attrs: Box::default(),
            }),
            spill: None,
            bonus_len: 0,
        }
    }
}

/// What the attribute numbers of a file system mean.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    lengths: Vec<u16>,
    swaps: Vec<SaByteswap>,
    standard: Vec<Option<u16>>,
    numbers: [Option<u16>; ATTRIBUTES.len()],
}

impl Registry {
    /// Takes the entries of the stored registry: name, and number with length.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] when the numbers have gaps.
    pub(super) fn from_values(values: &[(Vec<u8>, u64)]) -> FsResult<Self> {
        let mut registry = Self {
            lengths: vec![0; values.len()],
            swaps: vec![SaByteswap::U8; values.len()],
            standard: vec![None; values.len()],
            numbers: [None; ATTRIBUTES.len()],
        };
        for (name, value) in values {
            let (number, length) = decode_registry_value(*value);
            // Numbers are dense: a reader sizes its table by the number of entries.
            let at = usize::from(number);
            if at >= values.len() {
                return Err(FsError::Corrupt("attribute registry is not dense"));
            }
            registry.lengths[at] = length;
            registry.swaps[at] = byteswap_of_registry_value(*value);
            let is_name = |known: &&Attribute| known.name.as_bytes() == name.as_slice();
            if let Some(known) = ATTRIBUTES.iter().find(is_name) {
                registry.standard[at] = Some(known.number);
                registry.numbers[usize::from(known.number)] = Some(number);
            }
        }
        Ok(registry)
    }

    /// Returns how many numbers there are.
    pub(super) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Returns the registry of `len` numbers in which every usual attribute has the number given; foreign attributes keep their
    /// numbers and lengths.
    pub(super) fn extended(&self, len: usize, numbers: [u16; ATTRIBUTES.len()]) -> Self {
        assert!(len >= self.len(), "a registered number is never given up");
        let mut registry = Self {
            lengths: self.lengths.clone(),
            swaps: self.swaps.clone(),
            standard: vec![None; len],
            numbers: numbers.map(Some),
        };
        registry.lengths.resize(len, 0);
        registry.swaps.resize(len, SaByteswap::U8);
        for (known, number) in ATTRIBUTES.iter().zip(numbers) {
            registry.lengths[usize::from(number)] = known.length;
            registry.swaps[usize::from(number)] = known.byteswap;
            registry.standard[usize::from(number)] = Some(known.number);
        }
        registry
    }

    /// Returns the registered length of a number: 0 when variable, `None` when not registered.
    pub(crate) fn length(&self, number: u16) -> Option<u16> {
        self.lengths.get(usize::from(number)).copied()
    }

    /// Returns the registered length of a number, and how its values are swapped; `None` when not registered.
    pub(crate) fn byteswap(&self, number: u16) -> Option<(u16, SaByteswap)> {
        let at = usize::from(number);
        Some((*self.lengths.get(at)?, *self.swaps.get(at)?))
    }

    /// Returns the usual number of a registered number.
    pub(crate) fn standard(&self, number: u16) -> Option<u16> {
        self.standard.get(usize::from(number)).copied().flatten()
    }

    /// Returns the registered number of a usual number.
    pub(crate) fn number(&self, standard: u16) -> Option<u16> {
        self.numbers[usize::from(standard)]
    }
}
