//! The run of a program.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::call::{Call, Flow};
use crate::code::ALL;
use crate::compiler::compile;
use crate::host::{Data, Host};
use crate::library;
use crate::objects::Upvalue;
use crate::value::Value;
use crate::vm::{Fault, Vm};

/// A program and its limits.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// The text.
    pub text: &'a [u8],
    /// What `...` is.
    pub argument: Data,
    /// Functions of the host: their names with dots, as `zfs.sync.destroy`, and the numbers that [`Host::call`] gets.
    pub functions: &'a [(&'a str, u16)],
    /// Global variables.
    pub globals: &'a [(&'a str, i64)],
    /// Instructions that may be run; checked every hundred.
    pub instructions_max: u64,
    /// Bytes of objects that there may be at a time, what is made for the libraries included.
    pub memory_bytes_max: usize,
    /// Once set, the program ends with [`Failure::Canceled`] soon.
    pub cancel: Arc<AtomicBool>,
}

/// What a program returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing.
    Nothing,
    /// One value.
    One(Data),
    /// More than one, which cannot leave the program.
    Many,
}

/// Why a program ended early. What it did until then was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The text is no program, and nothing was run.
    Syntax(Vec<u8>),
    /// An error: its message, if it has one, and the calls under way.
    Error(Vec<u8>),
    /// The limit on instructions was reached after so many.
    TimedOut {
        /// The message and the calls under way.
        message: Vec<u8>,
        /// Instructions, in hundreds.
        instructions: u64,
    },
    /// It was canceled: the message and the calls under way.
    Canceled(Vec<u8>),
    /// The limit on memory was reached.
    Memory,
    /// The program ended, but what it returned takes more memory than it may use.
    ReturnTooLarge,
}

/// Runs a program to its end.
///
/// # Errors
/// See [`Failure`].
pub fn run(program: &Program<'_>, host: &mut dyn Host) -> Result<Returned, Failure> {
    run_with(program, host, false)
}

/// As [`run`]; for tests, `collect_always` collects at each allocation.
pub(crate) fn run_with(
    program: &Program<'_>,
    host: &mut dyn Host,
    collect_always: bool,
) -> Result<Returned, Failure> {
    let mut vm = Vm::new(host, program.cancel.clone());
    library::open(&mut vm);
    for &(name, number) in program.functions {
        let mut table = vm.globals;
        let mut name = name;
        while let Some((library, rest)) = name.split_once('.') {
            table = library::subtable(&mut vm.heap, table, library);
            name = rest;
        }
        library::set(&mut vm.heap, table, name, Value::Host(number));
    }
    let globals = vm.globals;
    for &(name, value) in program.globals {
        library::set(&mut vm.heap, globals, name, Value::Int(value));
    }
    let code = compile(program.text, &mut vm.heap).map_err(Failure::Syntax)?;
    vm.set_program(code.clone());
    let environment = vm.heap.new_upvalue(Upvalue::Closed(Value::Table(globals)));
    let main = Value::Closure(vm.heap.new_closure(code, vec![environment]));
    let started = vm.push(main).and_then(|()| vm.import(&program.argument));
    started.expect("memory is not limited yet");
    vm.heap.set_limit(program.memory_bytes_max);
    vm.instructions_max = program.instructions_max;
    vm.collect_always = collect_always;
    // The call of the program itself.
    vm.native_calls = 1;
    let ended = run_main(&mut vm);
    match ended {
        Ok(()) => returned(&vm, program.memory_bytes_max),
        Err(fault) => Err(failure(&vm, fault)),
    }
}

fn run_main(vm: &mut Vm<'_>) -> Result<(), Fault> {
    vm.begin_call(Call::new(0, 1, ALL))?;
    vm.frame_mut().is_entry = true;
    let flow = vm.execute()?;
    assert_eq!(flow, Flow::Left, "the program itself cannot yield");
    Ok(())
}

fn returned(vm: &Vm<'_>, memory_bytes_max: usize) -> Result<Returned, Failure> {
    match vm.thread.top {
        0 => Ok(Returned::Nothing),
        1 => {
            let mut budget = memory_bytes_max;
            match vm.export(vm.thread.stack[0], 0, &mut budget) {
                Ok(data) => Ok(Returned::One(data)),
                Err(_) => Err(Failure::ReturnTooLarge),
            }
        }
        _ => Ok(Returned::Many),
    }
}

fn failure(vm: &Vm<'_>, fault: Fault) -> Failure {
    let with_calls = |message: Option<&[u8]>| {
        let mut text = message.unwrap_or_default().to_vec();
        if message.is_some() {
            text.push(b'\n');
        }
        text.extend_from_slice(vm.traceback().as_bytes());
        text
    };
    match fault {
        Fault::Memory => Failure::Memory,
        Fault::Error(value) => Failure::Error(with_calls(vm.text_of(value).as_deref())),
        // OpenZFS: module/zfs/zcp.c, zcp_lua_counthook (texts)
        Fault::TimedOut => Failure::TimedOut {
            message: with_calls(Some(b"Channel program timed out.")),
            instructions: vm.instructions,
        },
        Fault::Canceled => Failure::Canceled(with_calls(Some(b"Channel program was canceled."))),
    }
}
