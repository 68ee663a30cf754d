//! What `zinject` prints of faults: one that was added, and tables of all.
// OpenZFS 2.4: cmd/zinject/zinject.c (lines, columns)

use engine::{DataFault, DeviceEffect, DeviceFault, Fault, FaultyBlocks, InjectedFault};

use super::arguments::{ERRORS, IO, TYPES};
use crate::appliance::Delayed;
use crate::cli::{Outcome, Session};

/// The name of a value of a table.
fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    let mut rows = table.iter();
    rows.find(|(_, known)| known == value)
        .map_or("-", |(name, _)| name)
}

/// The first lines about a fault that was added.
pub(super) fn heading(id: u64, pool: &str) -> String {
    format!("Added handler {id} with the following properties:\n  pool: {pool}\n")
}

/// What is said of a fault that was added.
pub(super) fn added(id: u64, pool: &str, fault: &Fault) -> String {
    let mut text = heading(id, pool);
    match fault {
        Fault::Device(fault) => text.push_str(&format!("  vdev: {:x}\n", fault.leaf.0)),
        Fault::Data(fault) => {
            let numbers = Numbers::of(fault);
            text.push_str(&format!("objset: {}\n", numbers.objset));
            text.push_str(&format!("object: {}\n", numbers.object));
            text.push_str(&format!("  type: {}\n", numbers.object_type));
            text.push_str(&format!(" level: {}\n", numbers.level));
            match numbers.range {
                Some((start, end)) => text.push_str(&format!(" range: [{start}, {end}]\n")),
                None => text.push_str(" range: all\n"),
            }
            text.push_str(&format!("  dvas: 0x{:x}\n", fault.copies));
        }
    }
    text
}

/// The blocks of a fault as numbers: the meta-objset is objset 0, and all of its objects are object 0.
struct Numbers {
    objset: u64,
    object: u64,
    object_type: u8,
    level: u32,
    range: Option<(u64, u64)>,
}

impl Numbers {
    fn of(fault: &DataFault) -> Self {
        match &fault.blocks {
            FaultyBlocks::Object {
                objset,
                object,
                level,
                blocks,
            } => {
                let (start, end) = (*blocks.start(), *blocks.end());
                let is_all = start == 0 && end == u64::MAX;
                Self {
                    objset: *objset,
                    object: *object,
                    object_type: 0,
                    level: *level,
                    range: (!is_all).then_some((start, end)),
                }
            }
            FaultyBlocks::MetaObjset(only) => Self {
                objset: 0,
                object: 0,
                object_type: only.map_or(0, |object_type| object_type.0),
                level: 0,
                range: None,
            },
        }
    }
}

/// A table with its headings and, under them, lines: what OpenZFS prints, column by column.
struct Table {
    headings: &'static str,
    rows: Vec<String>,
}

impl Table {
    fn new(headings: &'static str) -> Self {
        Self {
            headings,
            rows: Vec::new(),
        }
    }

    /// Prints it, unless it is empty; returns whether it did.
    fn print(self, session: &Session) -> bool {
        if self.rows.is_empty() {
            return false;
        }
        session.out.text(self.headings);
        for row in self.rows {
            session.out.line(row);
        }
        session.out.line("");
        true
    }
}

const DEVICES: &str = concat!(
    " ID  POOL             GUID              TYPE   ERROR       FREQ       MATCH   INJECT\n",
    "---  ---------------  ----------------  -----  ----------  ---------  ------  ------\n",
);

const DELAYS: &str = concat!(
    " ID  POOL             GUID              DELAY (ms)  LANES  FREQ       MATCH   INJECT\n",
    "---  ---------------  ----------------  ----------  -----  ---------  ------  ------\n",
);

const DATA: &str = concat!(
    " ID  POOL             OBJSET  OBJECT  TYPE      LVL  DVAs  RANGE            MATCH   INJECT\n",
    "---  ---------------  ------  ------  --------  ---  ----  ---------------  ------  ------\n",
);

const POOLS: &str = concat!(
    " ID  POOL                 DELAY (sec)  COMMAND\n",
    "---  -------------------  -----------  -------\n",
);

/// Prints all faults, those of one kind together.
pub(super) async fn run(session: &Session) -> Outcome {
    let (mut devices, mut delays) = (Table::new(DEVICES), Table::new(DELAYS));
    let (mut data, mut pools) = (Table::new(DATA), Table::new(POOLS));
    let mut all: Vec<(String, InjectedFault)> = Vec::new();
    for pool in session.appliance.open_pools() {
        let injected = pool.injected_faults().await.unwrap_or_default();
        let named = injected
            .into_iter()
            .map(|fault| (pool.name().to_owned(), fault));
        all.extend(named);
    }
    all.sort_by_key(|(_, injected)| injected.id);
    for (pool, injected) in &all {
        match &injected.fault {
            Fault::Device(fault) => match fault.effect {
                DeviceEffect::Delay { latency, lanes } => {
                    let delay = (latency.as_millis(), lanes);
                    delays.rows.push(delay_row(pool, injected, fault, delay));
                }
                _ => devices.rows.push(device_row(pool, injected, fault)),
            },
            Fault::Data(fault) => data.rows.push(data_row(pool, injected, fault)),
        }
    }
    for delay in session.appliance.faults().delays() {
        let command = match delay.of {
            Delayed::Import => "import",
            Delayed::Export => "export",
        };
        let (id, pool, seconds) = (delay.id, delay.pool, delay.seconds);
        pools
            .rows
            .push(format!("{id:>3}  {pool:<19}  {seconds:<11}  {command}"));
    }
    let printed = [devices, delays, data, pools].map(|table| table.print(session));
    if !printed.contains(&true) {
        session.out.line("No handlers registered.");
        session.out.line("Run 'zinject -h' for usage information.");
    }
    Ok(())
}

fn counts(injected: &InjectedFault) -> String {
    format!("{:>6}  {:>6}", injected.matched, injected.injected)
}

fn device_row(pool: &str, injected: &InjectedFault, fault: &DeviceFault) -> String {
    let error = match &fault.effect {
        DeviceEffect::Error(error) | DeviceEffect::LabelError(_, error) => name_of(ERRORS, error),
        DeviceEffect::Delay { .. } => "-",
    };
    format!(
        "{:>3}  {pool:<15}  {:x}  {:<5}  {error:<10}  {:>8.4}%  {}",
        injected.id,
        fault.leaf.0,
        name_of(IO, &fault.io),
        fault.frequency.percent(),
        counts(injected)
    )
}

fn delay_row(
    pool: &str,
    injected: &InjectedFault,
    fault: &DeviceFault,
    (milliseconds, lanes): (u128, u16),
) -> String {
    format!(
        "{:>3}  {pool:<15}  {:x}  {milliseconds:>10}  {lanes:>5}  {:>8.4}%  {}",
        injected.id,
        fault.leaf.0,
        fault.frequency.percent(),
        counts(injected)
    )
}

fn data_row(pool: &str, injected: &InjectedFault, fault: &DataFault) -> String {
    let numbers = Numbers::of(fault);
    let range = match numbers.range {
        Some((start, end)) => format!("[{start}, {end}]"),
        None => "all".to_owned(),
    };
    let mut types = TYPES.iter();
    let object_type = types
        .find(|(_, known)| known.0 == numbers.object_type)
        .map_or("-", |(name, _)| name);
    format!(
        "{:>3}  {pool:<15}  {:<6}  {:<6}  {object_type:<8}  {:<3}  0x{:02x}  {range:<15}  {}",
        injected.id,
        numbers.objset,
        numbers.object,
        numbers.level,
        fault.copies,
        counts(injected)
    )
}
