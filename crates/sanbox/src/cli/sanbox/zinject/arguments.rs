//! The grammar of `zinject`: which fault its words ask for, or what is wrong with them, in the words of OpenZFS's.
// OpenZFS: man/man8/zinject.8; cmd/zinject/zinject.c (messages, exit codes, the order of the checks)

use std::ops::Range;
use std::time::Duration;

use engine::{DeviceAction, DeviceEffect, Frequency, InjectedError, InjectedIo, LabelArea};

use crate::appliance::Delayed;
use crate::cli::flag::Flag;
use crate::cli::getopt::{Getopt, OptError};

/// Why the words are refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) message: String,
    /// The usage follows.
    pub(super) with_usage: bool,
    pub(super) code: u8,
}

/// Refuses words of which the usage tells more.
fn misuse<T>(message: impl Into<String>, code: u8) -> Result<T, Refusal> {
    Err(Refusal {
        message: message.into(),
        with_usage: true,
        code,
    })
}

/// Refuses words that do not go together.
fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        message: message.into(),
        with_usage: false,
        code: 1,
    })
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(super) enum Work {
    /// Lists what is injected.
    List,
    /// Prints the help.
    Help,
    /// Ends a fault, or all.
    Cancel(Option<u64>),
    /// Only forgets what the caches hold.
    FlushCaches,
    /// Injects a fault into I/O of a device.
    Device(DeviceWork),
    /// Makes a device count as one that failed.
    Act(DeviceAction, String, String),
    /// Injects a fault into reads of blocks.
    Data(DataWork),
    /// Delays the next import or export.
    Delay(Delayed, u64, String),
}

/// A fault of a device, named by what the user calls it.
#[derive(Debug, PartialEq)]
pub(super) struct DeviceWork {
    pub(super) device: String,
    pub(super) pool: String,
    pub(super) effect: DeviceEffect,
    pub(super) io: InjectedIo,
    pub(super) frequency: Frequency,
    pub(super) fail_fast: bool,
}

/// A fault of blocks.
#[derive(Debug, PartialEq)]
pub(super) struct DataWork {
    pub(super) blocks: Blocks,
    pub(super) error: InjectedError,
    pub(super) copies: u8,
    pub(super) frequency: Frequency,
}

/// The blocks, as they were named.
#[derive(Debug, PartialEq)]
pub(super) enum Blocks {
    /// Content of a file, by its path.
    Content {
        path: String,
        level: u32,
        range: Option<Range<u64>>,
    },
    /// The dnode of a file or directory.
    Dnode { path: String, level: u32 },
    /// Blocks of the meta-objset of a pool, of one type or all.
    MetaObjset(String, Option<engine::ObjectType>),
    /// One block of a pool: objset, object, level, number.
    Bookmark(String, [u64; 4]),
}

/// A command line, read.
#[derive(Debug, PartialEq)]
pub(super) struct Words {
    pub(super) work: Work,
    pub(super) flush_caches: bool,
    pub(super) remount: bool,
    pub(super) quiet: bool,
}

/// What `-t` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Data,
    Dnode,
    MetaObjset(Option<engine::ObjectType>),
}

#[derive(Default)]
struct Given {
    flush_caches: bool,
    remount: bool,
    quiet: bool,
    fail_fast: bool,
    unload: bool,
    ignored_writes: bool,
    panic: bool,
    ready_delay: bool,
    action: Option<DeviceAction>,
    raw: Option<String>,
    cancel: Option<String>,
    copies: u8,
    device: Option<String>,
    delay: Option<(u64, u64)>,
    error: Option<InjectedError>,
    frequency: Option<Frequency>,
    io: Option<InjectedIo>,
    level: u32,
    range: Option<String>,
    seconds: Option<u64>,
    txgs: Option<u64>,
    what: Option<What>,
    label: Option<LabelArea>,
    delayed: Option<Delayed>,
}

/// Reads the words after the command's name.
pub(super) fn read(words: &[String], flags: &[Flag]) -> Result<Words, Refusal> {
    if words.is_empty() {
        return Ok(Words::only(Work::List));
    }
    let mut given = Given::default();
    let mut options = Getopt::new(words, flags);
    loop {
        match options.next() {
            Ok(None) => break,
            Ok(Some(option)) => {
                let letter = flags[option.index].short.unwrap_or_default();
                if letter == 'h' {
                    return Ok(Words::only(Work::Help));
                }
                given.take(letter, option.value.unwrap_or_default())?;
            }
            Err(OptError::Missing(letter)) => {
                return misuse(format!("option -{letter} requires an operand"), 1);
            }
            Err(error) => return misuse(error.to_string(), 2),
        }
    }
    let operands = options.operands();
    Ok(Words {
        flush_caches: given.flush_caches,
        remount: given.remount,
        quiet: given.quiet,
        work: given.work(&operands)?,
    })
}

impl Words {
    fn only(work: Work) -> Self {
        Self {
            work,
            flush_caches: false,
            remount: false,
            quiet: false,
        }
    }
}

impl Given {
    fn take(&mut self, letter: char, value: String) -> Result<(), Refusal> {
        match letter {
            'a' => self.flush_caches = true,
            'A' => self.action = Some(action(&value)?),
            'b' => self.raw = Some(value),
            'c' => self.cancel = Some(value),
            'C' => self.copies = copies(&value)?,
            'd' => self.device = Some(value),
            'D' => self.delay = Some(delay(&value)?),
            'E' => self.ready_delay = true,
            'e' => self.error = Some(error(&value)?),
            'f' => self.frequency = Some(frequency(&value)?),
            'F' => self.fail_fast = true,
            'g' => self.txgs = Some(duration(&value)?),
            'I' => self.ignored_writes = true,
            'l' => match value.parse() {
                Ok(level) => self.level = level,
                Err(_) => {
                    return misuse(format!("invalid level '{value}': must be an integer"), 1);
                }
            },
            'L' => self.label = Some(label(&value)?),
            'm' => self.remount = true,
            'p' => self.panic = true,
            'P' => self.delayed = Some(delayed(&value)?),
            'q' => self.quiet = true,
            'r' => self.range = Some(value),
            's' => self.seconds = Some(duration(&value)?),
            'T' => self.io = Some(io(&value)?),
            't' => self.what = Some(what(&value)?),
            _ => self.unload = true,
        }
        Ok(())
    }

    /// Whether there are options of faults of data.
    fn has_data_options(&self) -> bool {
        self.raw.is_some()
            || self.range.is_some()
            || self.what.is_some()
            || self.level != 0
            || self.has_command()
            || self.copies != 0
    }

    fn has_command(&self) -> bool {
        let lasts = self.seconds.is_some() || self.txgs.is_some() || self.ignored_writes;
        lasts || self.delayed.is_some() || self.panic || self.ready_delay
    }

    fn work(self, operands: &[String]) -> Result<Work, Refusal> {
        if let Some(id) = &self.cancel {
            if self.has_data_options() || self.frequency.is_some() {
                return misuse("cancel (-c) incompatible with any other options", 2);
            }
            if !operands.is_empty() {
                return misuse("extraneous argument to '-c'", 2);
            }
            return cancel(id);
        }
        if self.panic {
            return refuse("a panic (-p) cannot be injected: it would end the appliance");
        }
        if self.ready_delay {
            return refuse("a delay of the pipeline (-E) cannot be injected; -D delays a device");
        }
        if self.unload {
            return refuse("pools are not unloaded (-u): export and import the pool instead");
        }
        if let Some(device) = self.device.clone() {
            return self.of_device(device, operands);
        }
        if let Some(raw) = self.raw.clone() {
            return self.of_bookmark(&raw, operands);
        }
        if let Some(delayed) = self.delayed {
            return self.of_pool(delayed, operands);
        }
        if self.ignored_writes || self.seconds.is_some() || self.txgs.is_some() {
            return self.of_writes();
        }
        let Some(what) = self.what else {
            if !self.flush_caches {
                return misuse(
                    "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified",
                    2,
                );
            }
            if !operands.is_empty() {
                return misuse("extraneous argument for '-f'", 2);
            }
            return Ok(Work::FlushCaches);
        };
        self.of_data(what, operands)
    }

    fn of_device(self, device: String, operands: &[String]) -> Result<Work, Refusal> {
        if self.has_data_options() {
            return misuse("device (-d) incompatible with data error injection", 2);
        }
        let [pool] = operands else {
            return misuse("device (-d) injection requires a single pool name", 2);
        };
        let io = self.io.unwrap_or(InjectedIo::All);
        match self.error {
            Some(InjectedError::Checksum) => {
                return refuse("device error type must be 'io', 'nxio' or 'corrupt'");
            }
            Some(InjectedError::Corrupt) if self.frequency.is_none() || io != InjectedIo::Read => {
                return refuse("device corrupt errors require io type read and a frequency value");
            }
            _ => {}
        }
        let delays = matches!(io, InjectedIo::Read | InjectedIo::Write | InjectedIo::All);
        if self.delay.is_some() && !delays {
            return misuse("I/O type for a delay must be 'read' or 'write'", 1);
        }
        if let Some(action) = self.action {
            return Ok(Work::Act(action, device, pool.clone()));
        }
        let error = self.error.unwrap_or(InjectedError::NoDevice);
        let effect = match (self.delay, self.label) {
            (Some((milliseconds, lanes)), _) => {
                // As many as OpenZFS takes.
                let Some(lanes) = u16::try_from(lanes)
                    .ok()
                    .filter(|lanes| (1..u16::MAX).contains(lanes))
                else {
                    return refuse("failed to add handler: Invalid argument");
                };
                DeviceEffect::Delay {
                    latency: Duration::from_millis(milliseconds),
                    lanes,
                }
            }
            (None, Some(area)) => DeviceEffect::LabelError(area, error),
            (None, None) => DeviceEffect::Error(error),
        };
        Ok(Work::Device(DeviceWork {
            device,
            pool: pool.clone(),
            effect,
            io,
            frequency: self.frequency.unwrap_or(Frequency::ALWAYS),
            fail_fast: self.fail_fast,
        }))
    }

    fn of_bookmark(self, raw: &str, operands: &[String]) -> Result<Work, Refusal> {
        let others = self.range.is_some()
            || self.what.is_some()
            || self.level != 0
            || self.has_command()
            || self.frequency.is_some()
            || self.copies != 0;
        if others {
            return misuse("raw (-b) format with any other options", 2);
        }
        let [pool] = operands else {
            return misuse("raw (-b) format expects a single pool name", 2);
        };
        let error = data_error(self.error)?;
        let numbers: Vec<u64> = raw
            .split(':')
            .map_while(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16).ok())
            .collect();
        let Ok(numbers) = <[u64; 4]>::try_from(numbers) else {
            return refuse(format!(
                "bad raw spec '{raw}': must be of the form 'objset:object:level:blkid'"
            ));
        };
        Ok(Work::Data(DataWork {
            blocks: Blocks::Bookmark(pool.clone(), numbers),
            error,
            copies: 0,
            frequency: Frequency::ALWAYS,
        }))
    }

    fn of_pool(self, delayed: Delayed, operands: &[String]) -> Result<Work, Refusal> {
        let others = self.range.is_some()
            || self.what.is_some()
            || self.level != 0
            || self.frequency.is_some()
            || self.copies != 0;
        if others {
            return misuse(
                "import|export delay (-P) incompatible with other options",
                2,
            );
        }
        match (operands, self.seconds) {
            ([pool], Some(seconds)) => Ok(Work::Delay(delayed, seconds, pool.clone())),
            _ => misuse(
                "import|export delay (-P) injection requires a duration (-s) and a single pool name",
                2,
            ),
        }
    }

    fn of_writes(self) -> Result<Work, Refusal> {
        if !self.ignored_writes {
            return misuse("-s or -g meaningless without -I (ignore writes)", 2);
        }
        if self.seconds.is_some() && self.txgs.is_some() {
            return misuse(
                "choose a duration either in seconds (-s) or a number of txgs (-g) but not both",
                2,
            );
        }
        refuse(
            "writes are not ignored (-I): nothing would tell what of the pool is left; \
             '-d DEVICE -e noop -T write' loses those of one device",
        )
    }

    fn of_data(self, what: What, operands: &[String]) -> Result<Work, Refusal> {
        let [object] = operands else {
            return misuse("missing object", 2);
        };
        let error = data_error(self.error)?;
        let of_bytes = matches!(error, InjectedError::Decompress | InjectedError::Decrypt);
        if self.copies != 0 && of_bytes {
            return refuse(
                "the '-C' option may not be used with logical data errors 'decrypt' and 'decompress'",
            );
        }
        if error == InjectedError::Decrypt && what != What::Data {
            return refuse("decryption errors may only be injected for 'data' types");
        }
        let blocks = match what {
            What::MetaObjset(only) => Blocks::MetaObjset(object.clone(), only),
            _ if !object.starts_with('/') => {
                return misuse(format!("invalid object '{object}': must be full path"), 1);
            }
            What::Dnode if self.range.is_some() => {
                return refuse("range cannot be specified when type is 'dnode'");
            }
            What::Dnode => Blocks::Dnode {
                path: object.clone(),
                level: self.level,
            },
            What::Data => Blocks::Content {
                path: object.clone(),
                level: self.level,
                range: self.range.as_deref().map(range).transpose()?,
            },
        };
        Ok(Work::Data(DataWork {
            blocks,
            error,
            copies: self.copies,
            frequency: self.frequency.unwrap_or(Frequency::ALWAYS),
        }))
    }
}

fn data_error(error: Option<InjectedError>) -> Result<InjectedError, Refusal> {
    match error.unwrap_or(InjectedError::Io) {
        InjectedError::NoDevice
        | InjectedError::Corrupt
        | InjectedError::Dtl
        | InjectedError::Noop => refuse("data error type must be 'checksum' or 'io'"),
        error => Ok(error),
    }
}

fn cancel(id: &str) -> Result<Work, Refusal> {
    if id == "all" {
        return Ok(Work::Cancel(None));
    }
    match id.parse() {
        Ok(id) => Ok(Work::Cancel(Some(id))),
        Err(_) => misuse(
            format!("invalid handle id '{id}': must be an integer or 'all'"),
            1,
        ),
    }
}

fn action(text: &str) -> Result<DeviceAction, Refusal> {
    match text.to_ascii_lowercase().as_str() {
        "degrade" => Ok(DeviceAction::Degrade),
        "fault" => Ok(DeviceAction::Fault),
        _ => misuse(
            format!("invalid action '{text}': must be 'degrade' or 'fault'"),
            1,
        ),
    }
}

fn copies(text: &str) -> Result<u8, Refusal> {
    let mut mask = 0;
    for number in text.split(',') {
        let bit = match number {
            "0" => 1,
            "1" => 2,
            "2" => 4,
            _ => 0,
        };
        if bit == 0 || mask & bit != 0 {
            return misuse(
                format!(
                    "invalid DVA list '{text}': DVAs should be 0 indexed and separated by commas."
                ),
                1,
            );
        }
        mask |= bit;
    }
    Ok(mask)
}

fn delay(text: &str) -> Result<(u64, u64), Refusal> {
    let read = || {
        let (milliseconds, lanes) = text.split_once(':')?;
        let milliseconds = milliseconds.trim().parse().ok()?;
        Some((milliseconds, lanes.parse().ok()?))
    };
    match read() {
        Some((milliseconds, lanes)) if milliseconds > 0 => Ok((milliseconds, lanes)),
        _ => misuse(format!("invalid i/o delay value: '{text}'"), 1),
    }
}

/// Errors by name.
pub(super) const ERRORS: &[(&str, InjectedError)] = &[
    ("io", InjectedError::Io),
    ("checksum", InjectedError::Checksum),
    ("decompress", InjectedError::Decompress),
    ("decrypt", InjectedError::Decrypt),
    ("nxio", InjectedError::NoDevice),
    ("dtl", InjectedError::Dtl),
    ("corrupt", InjectedError::Corrupt),
    ("noop", InjectedError::Noop),
];

/// Kinds of I/O by name.
pub(super) const IO: &[(&str, InjectedIo)] = &[
    ("null", InjectedIo::Null),
    ("read", InjectedIo::Read),
    ("write", InjectedIo::Write),
    ("free", InjectedIo::Free),
    ("claim", InjectedIo::Claim),
    ("flush", InjectedIo::Flush),
    ("trim", InjectedIo::Trim),
    ("all", InjectedIo::All),
    ("probe", InjectedIo::Probe),
];

/// Types of objects of the meta-objset by name.
pub(super) const TYPES: &[(&str, engine::ObjectType)] = &[
    ("mosdir", engine::ObjectType::OBJECT_DIRECTORY),
    ("metaslab", engine::ObjectType::OBJECT_ARRAY),
    ("config", engine::ObjectType::PACKED_NVLIST),
    ("bpobj", engine::ObjectType::BPOBJ),
    ("spacemap", engine::ObjectType::SPACE_MAP),
    ("errlog", engine::ObjectType::ERROR_LOG),
];

fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    let mut rows = table.iter();
    rows.find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, meaning)| *meaning)
}

fn error(text: &str) -> Result<InjectedError, Refusal> {
    named(ERRORS, text).map_or_else(
        || {
            misuse(
                format!(
                    "invalid error type '{text}': must be one of: io decompress decrypt nxio dtl corrupt noop"
                ),
                1,
            )
        },
        Ok,
    )
}

fn io(text: &str) -> Result<InjectedIo, Refusal> {
    named(IO, text).map_or_else(
        || {
            misuse(
                format!(
                    "invalid I/O type '{text}': must be 'read', 'write', 'free', 'claim', 'flush' or 'all'"
                ),
                1,
            )
        },
        Ok,
    )
}

fn what(text: &str) -> Result<What, Refusal> {
    match text {
        "data" => Ok(What::Data),
        "dnode" => Ok(What::Dnode),
        "mos" => Ok(What::MetaObjset(None)),
        _ => match named(TYPES, text) {
            Some(object_type) => Ok(What::MetaObjset(Some(object_type))),
            None => misuse(format!("invalid type '{text}'"), 1),
        },
    }
}

fn label(text: &str) -> Result<LabelArea, Refusal> {
    match text {
        "uber" => Ok(LabelArea::Uberblocks),
        "nvlist" => Ok(LabelArea::Nvlist),
        "pad1" => Ok(LabelArea::Pad1),
        "pad2" => Ok(LabelArea::Pad2),
        _ => misuse(format!("invalid label type '{text}'"), 1),
    }
}

fn delayed(text: &str) -> Result<Delayed, Refusal> {
    match text.to_ascii_lowercase().as_str() {
        "import" => Ok(Delayed::Import),
        "export" => Ok(Delayed::Export),
        _ => misuse(
            format!("invalid command '{text}': must be 'import' or 'export'"),
            1,
        ),
    }
}

fn frequency(text: &str) -> Result<Frequency, Refusal> {
    let why = match text.parse::<f64>() {
        Ok(percent) => match Frequency::from_percent(percent) {
            Some(frequency) => return Ok(frequency),
            None => "out of range",
        },
        Err(_) => "invalid value",
    };
    refuse(format!(
        "{why}: frequency value must be in the range [0.0001, 100.0]"
    ))
}

/// Seconds or txgs: at most what OpenZFS takes.
fn duration(text: &str) -> Result<u64, Refusal> {
    match text.parse::<i32>().ok().and_then(|n| u64::try_from(n).ok()) {
        Some(number) if number > 0 => Ok(number),
        _ => misuse(
            format!("invalid duration '{text}': must be a positive integer"),
            1,
        ),
    }
}

/// Reads `start[,end]`; without an end, one byte.
fn range(text: &str) -> Result<Range<u64>, Refusal> {
    let number = |text: &str| engine::property::parse_number(text).ok();
    let read = || {
        let Some((start, end)) = text.split_once(',') else {
            let start = number(text)?;
            return Some(start..start.checked_add(1)?);
        };
        Some(number(start)?..number(end)?)
    };
    match read() {
        Some(range) if !range.is_empty() => Ok(range),
        _ => refuse(format!(
            "invalid range '{text}': must be a numeric range of the form 'start[,end]'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::declare::ZINJECT;

    fn of(line: &str) -> Result<Words, Refusal> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        read(&words, ZINJECT.flags)
    }

    #[track_caller]
    fn refused(line: &str, code: u8, message: &str) {
        let refusal = of(line).expect_err(line);
        assert_eq!((refusal.code, refusal.message.as_str()), (code, message));
    }

    #[track_caller]
    fn device(line: &str) -> DeviceWork {
        match of(line).expect(line).work {
            Work::Device(work) => work,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[track_caller]
    fn data(line: &str) -> DataWork {
        match of(line).expect(line).work {
            Work::Data(work) => work,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn faults_of_devices() {
        let plain = device("-d sda tank");
        assert_eq!(plain.effect, DeviceEffect::Error(InjectedError::NoDevice));
        assert_eq!(
            (plain.io, plain.frequency),
            (InjectedIo::All, Frequency::ALWAYS)
        );
        // Options behind the operand count, too.
        let label = device("-d sda -e io -T write -f 50 tank -L uber");
        let effect = DeviceEffect::LabelError(LabelArea::Uberblocks, InjectedError::Io);
        assert_eq!(label.effect, effect);
        assert_eq!(label.io, InjectedIo::Write);
        let delay = device("-d sda -D25:2 -T read tank");
        let latency = Duration::from_millis(25);
        assert_eq!(delay.effect, DeviceEffect::Delay { latency, lanes: 2 });
        let fault = of("-d sda -A fault -D 10:1 tank").expect("an action");
        let work = Work::Act(DeviceAction::Fault, "sda".to_owned(), "tank".to_owned());
        assert_eq!(fault.work, work);
        refused(
            "-d sda -e checksum tank",
            1,
            "device error type must be 'io', 'nxio' or 'corrupt'",
        );
        refused(
            "-d sda -e corrupt -T read tank",
            1,
            "device corrupt errors require io type read and a frequency value",
        );
        refused("-d sda -D 0:1 tank", 1, "invalid i/o delay value: '0:1'");
        refused(
            "-d sda -D 5:0 tank",
            1,
            "failed to add handler: Invalid argument",
        );
        refused(
            "-d sda -D 5:65535 tank",
            1,
            "failed to add handler: Invalid argument",
        );
        refused(
            "-d sda -D 5:1 -T flush tank",
            1,
            "I/O type for a delay must be 'read' or 'write'",
        );
        refused(
            "-d sda",
            2,
            "device (-d) injection requires a single pool name",
        );
        refused(
            "-d sda -l 1 tank",
            2,
            "device (-d) incompatible with data error injection",
        );
        refused("-d", 1, "option -d requires an operand");
        refused("-z", 2, "invalid option 'z'");
    }

    #[test]
    fn faults_of_data() {
        let file = data("-a -t data -e checksum -f 100 -r 0,128K /tank/f");
        assert_eq!(file.error, InjectedError::Checksum);
        let path = "/tank/f".to_owned();
        let range = Some(0..128 << 10);
        let level = 0;
        assert_eq!(file.blocks, Blocks::Content { path, level, range });
        assert!(of("-a -t data /tank/f").expect("a file").flush_caches);
        assert_eq!(data("-t data -C 0,2 /tank/f").copies, 5);
        let dnode = data("-t dnode -l 1 /tank/f").blocks;
        let (path, level) = ("/tank/f".to_owned(), 1);
        assert_eq!(dnode, Blocks::Dnode { path, level });
        let maps = Some(engine::ObjectType::SPACE_MAP);
        let blocks = Blocks::MetaObjset("tank".to_owned(), maps);
        assert_eq!(data("-t spacemap tank").blocks, blocks);
        let raw = data("-b 36:2:0:3fff tank").blocks;
        let numbers = [0x36, 2, 0, 0x3fff];
        assert_eq!(raw, Blocks::Bookmark("tank".to_owned(), numbers));
        refused(
            "-b 1:2:3 tank",
            1,
            "bad raw spec '1:2:3': must be of the form 'objset:object:level:blkid'",
        );
        refused("-t data", 2, "missing object");
        refused("-t data f", 1, "invalid object 'f': must be full path");
        refused(
            "-t dnode -r 0 /tank/f",
            1,
            "range cannot be specified when type is 'dnode'",
        );
        refused(
            "-t data -e nxio /tank/f",
            1,
            "data error type must be 'checksum' or 'io'",
        );
        refused(
            "-t data -r 5,5 /tank/f",
            1,
            "invalid range '5,5': must be a numeric range of the form 'start[,end]'",
        );
        for bad in ["3", "0,0", "0,", ",", "0;1"] {
            let text = format!(
                "invalid DVA list '{bad}': DVAs should be 0 indexed and separated by commas."
            );
            refused(&format!("-t data -C {bad} /tank/f"), 1, &text);
        }
    }

    #[test]
    fn the_rest() {
        assert_eq!(of("").expect("a list").work, Work::List);
        assert_eq!(of("-h").expect("help").work, Work::Help);
        assert_eq!(of("-a").expect("a flush").work, Work::FlushCaches);
        assert_eq!(of("-c all").expect("all").work, Work::Cancel(None));
        assert_eq!(of("-c 7").expect("one").work, Work::Cancel(Some(7)));
        let delay = of("-P import -s 10 tank").expect("a delay").work;
        assert_eq!(delay, Work::Delay(Delayed::Import, 10, "tank".to_owned()));
        refused(
            "-c x",
            1,
            "invalid handle id 'x': must be an integer or 'all'",
        );
        refused(
            "-c 1 -l 1",
            2,
            "cancel (-c) incompatible with any other options",
        );
        refused("-c 1 tank", 2, "extraneous argument to '-c'");
        refused(
            "-q",
            2,
            "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified",
        );
        refused(
            "-f 200 -d sda tank",
            1,
            "out of range: frequency value must be in the range [0.0001, 100.0]",
        );
        refused(
            "-f x -d sda tank",
            1,
            "invalid value: frequency value must be in the range [0.0001, 100.0]",
        );
        refused(
            "-s 0 tank",
            1,
            "invalid duration '0': must be a positive integer",
        );
        refused(
            "-s 5 tank",
            2,
            "-s or -g meaningless without -I (ignore writes)",
        );
        refused(
            "-P export tank",
            2,
            "import|export delay (-P) injection requires a duration (-s) and a single pool name",
        );
        for refused_form in ["-p spa tank", "-u tank", "-E 5 -t data /tank/f", "-I tank"] {
            assert!(of(refused_form).is_err(), "{refused_form}");
        }
    }
}
