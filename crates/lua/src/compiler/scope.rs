//! Variables, blocks, labels and functions within functions.

use std::rc::Rc;

use crate::code::{LocalName, Op, UpvalueSource};
use crate::lexer::{Lexed, SyntaxError, Token};

use super::emit::{Expression, Location};
use super::{Compiler, ENVIRONMENT, FunctionState};

/// Local variables of a function. OpenZFS: module/lua/lparser.c, MAXVARS
const LOCALS_MAX: usize = 200;
/// OpenZFS: module/lua/llimits.h, MAXUPVAL
const UPVALUES_MAX: usize = 255;
/// The label at the end of a loop.
const BREAK: &[u8] = b"break";

/// A local variable that is visible; its register is its place among them.
pub(super) struct ActiveLocal {
    pub(super) name: Rc<[u8]>,
    /// Its entry among the names for messages.
    entry: usize,
}

pub(super) struct Block {
    /// Local variables visible where it begins.
    locals: usize,
    labels: usize,
    gotos: usize,
    is_loop: bool,
    /// A closure shares one of its variables.
    is_shared: bool,
}

pub(super) struct Label {
    name: Vec<u8>,
    at: usize,
    line: u32,
    locals: usize,
}

/// A jump to a label that was not seen yet.
pub(super) struct Goto {
    name: Vec<u8>,
    jump: usize,
    line: u32,
    locals: usize,
}

impl Compiler<'_> {
    // Variables.

    /// Announces local variables; they are visible once [`Compiler::activate`] is called.
    pub(super) fn activate(&mut self, names: &[Vec<u8>]) -> Lexed<()> {
        let count = self.state().active.len() + names.len();
        self.check_limit(count, LOCALS_MAX, "local variables")?;
        let from = self.here();
        let state = self.state();
        for name in names {
            let name: Rc<[u8]> = name.as_slice().into();
            let register = Self::register(state.active.len());
            state.active.push(ActiveLocal {
                name: name.clone(),
                entry: state.code.locals.len(),
            });
            state.code.locals.push(LocalName {
                name,
                register,
                from,
                until: usize::MAX,
            });
        }
        Ok(())
    }

    fn deactivate(&mut self, to: usize) {
        let here = self.here();
        let state = self.state();
        for local in state.active.drain(to..) {
            state.code.locals[local.entry].until = here;
        }
    }

    /// The variable of a name: local, of a function around, or global.
    pub(super) fn variable(&mut self, name: &[u8]) -> Lexed<Expression> {
        let level = self.functions.len() - 1;
        if let Some(found) = self.find_variable(level, name, true)? {
            return Ok(found.into());
        }
        let environment = self.find_variable(level, ENVIRONMENT, true)?;
        let environment = environment.expect("the program has this upvalue").into();
        let key = Location::Constant(self.string_constant(name)).into();
        self.indexed(&environment, key)
    }

    fn find_variable(
        &mut self,
        level: usize,
        name: &[u8],
        is_own: bool,
    ) -> Lexed<Option<Location>> {
        let state = &mut self.functions[level];
        if let Some(register) = state.active.iter().rposition(|local| *local.name == *name) {
            if !is_own {
                share(state, register);
            }
            return Ok(Some(Location::Local(Self::register(register))));
        }
        if let Some(known) = state
            .code
            .upvalues
            .iter()
            .position(|upvalue| *upvalue.name == *name)
        {
            return Ok(Some(Location::Upvalue(Self::register(known))));
        }
        if level == 0 {
            return Ok(None);
        }
        let source = match self.find_variable(level - 1, name, false)? {
            None => return Ok(None),
            Some(Location::Local(index)) => (true, index),
            Some(Location::Upvalue(index)) => (false, index),
            Some(_) => unreachable!("variables of functions around are local or upvalues"),
        };
        let count = self.functions[level].code.upvalues.len();
        self.check_limit(count + 1, UPVALUES_MAX, "upvalues")?;
        self.functions[level].code.upvalues.push(UpvalueSource {
            name: name.into(),
            is_local: source.0,
            index: source.1,
        });
        Ok(Some(Location::Upvalue(Self::register(count))))
    }

    // Blocks.

    pub(super) fn open_block(&mut self, is_loop: bool) {
        let state = self.state();
        state.blocks.push(Block {
            locals: state.active.len(),
            labels: state.labels.len(),
            gotos: state.gotos.len(),
            is_loop,
            is_shared: false,
        });
    }

    /// Whether variables of the innermost block are shared, and how many are visible outside of it.
    pub(super) fn block_shares(&mut self) -> Option<usize> {
        let block = self.state().blocks.last().expect("a block is open");
        block.is_shared.then_some(block.locals)
    }

    pub(super) fn close_block(&mut self) -> Lexed<()> {
        let block = self.state().blocks.pop().expect("a block is open");
        if !self.state().blocks.is_empty() && block.is_shared {
            let jump = self.jump();
            self.patch_close(jump, block.locals);
            self.patch_here(jump);
        }
        if block.is_loop {
            let label = Label {
                name: BREAK.to_vec(),
                at: self.here(),
                line: 0,
                locals: block.locals,
            };
            self.deactivate(block.locals);
            self.state().labels.truncate(block.labels);
            self.resolve_gotos(&label, block.gotos)?;
        }
        self.deactivate(block.locals);
        let state = self.state();
        state.free = state.active.len();
        state.labels.truncate(block.labels);
        if state.blocks.is_empty() {
            return match self.state().gotos.first() {
                Some(_) => Err(self.undefined_goto()),
                None => Ok(()),
            };
        }
        self.move_gotos_out(&block);
        Ok(())
    }

    /// Jumps that leave a block close what it shared.
    fn move_gotos_out(&mut self, block: &Block) {
        for number in block.gotos..self.state().gotos.len() {
            let pending = &self.state().gotos[number];
            let (jump, locals) = (pending.jump, pending.locals);
            if locals > block.locals {
                if block.is_shared {
                    self.patch_close(jump, block.locals);
                }
                self.state().gotos[number].locals = block.locals;
            }
        }
    }

    fn undefined_goto(&mut self) -> SyntaxError {
        let pending = &self.state().gotos[0];
        let (line, name) = (
            pending.line,
            String::from_utf8_lossy(&pending.name).into_owned(),
        );
        let message = if pending.name == BREAK {
            format!("<break> at line {line} not inside a loop")
        } else {
            format!("no visible label '{name}' for <goto> at line {line}")
        };
        self.error_near(&message)
    }

    // Labels.

    pub(super) fn break_statement(&mut self) {
        let line = self.last_line;
        self.add_goto(BREAK.to_vec(), line);
    }

    fn add_goto(&mut self, name: Vec<u8>, line: u32) {
        let jump = self.jump();
        let locals = self.state().active.len();
        self.state().gotos.push(Goto {
            name,
            jump,
            line,
            locals,
        });
    }

    /// A jump to a label, which may have been seen in this block or around it.
    pub(super) fn goto_statement(&mut self) -> Lexed<()> {
        let line = self.last_line;
        let name = self.name()?;
        let found = self.state().labels.iter().rfind(|label| label.name == name);
        let Some((at, locals)) = found.map(|label| (label.at, label.locals)) else {
            self.add_goto(name, line);
            return Ok(());
        };
        let shared = self.state().blocks.iter().any(|block| block.is_shared);
        let jump = self.jump();
        self.patch(jump, at);
        if self.state().active.len() > locals && shared {
            self.patch_close(jump, locals);
        }
        Ok(())
    }

    pub(super) fn label_statement(&mut self) -> Lexed<()> {
        let line = self.last_line;
        let name = self.name()?;
        let block = self.state().blocks.last().expect("a block is open");
        let (first_label, first_goto) = (block.labels, block.gotos);
        let known = self.state().labels[first_label..]
            .iter()
            .find(|label| label.name == name);
        if let Some(known) = known.map(|label| label.line) {
            let name = String::from_utf8_lossy(&name).into_owned();
            return Err(self.error_near(&format!("label '{name}' already defined on line {known}")));
        }
        self.expect_sign("::")?;
        while self.is_sign(";") || self.is_sign("::") {
            self.statement()?;
        }
        let ends_block = match &self.token {
            Token::End => true,
            Token::Keyword(keyword) => Self::ends_block(*keyword, false),
            _ => false,
        };
        // Behind the last statement of a block, none of its variables is visible.
        let block_locals = self.state().blocks.last().expect("a block is open").locals;
        let locals = if ends_block {
            block_locals
        } else {
            self.state().active.len()
        };
        let label = Label {
            name,
            at: self.here(),
            line,
            locals,
        };
        self.resolve_gotos(&label, first_goto)?;
        self.state().labels.push(label);
        Ok(())
    }

    /// Lets the jumps to a label that are pending since a place go there.
    fn resolve_gotos(&mut self, label: &Label, first: usize) -> Lexed<()> {
        let mut number = first;
        while number < self.state().gotos.len() {
            if self.state().gotos[number].name != label.name {
                number += 1;
                continue;
            }
            let pending = self.state().gotos.remove(number);
            if pending.locals < label.locals {
                let local = self.state().active[pending.locals].name.clone();
                let (name, local) = (
                    String::from_utf8_lossy(&pending.name),
                    String::from_utf8_lossy(&local),
                );
                let line = pending.line;
                let message =
                    format!("<goto {name}> at line {line} jumps into the scope of local '{local}'");
                return Err(self.error_near(&message));
            }
            self.patch(pending.jump, label.at);
        }
        Ok(())
    }

    // Functions.

    /// The parameters and the statements of a function; its keyword was read on `line`.
    pub(super) fn body(&mut self, is_method: bool, line: u32) -> Lexed<Expression> {
        self.functions.push(FunctionState::default());
        self.state().code.line = line;
        self.open_block(false);
        self.expect_sign("(")?;
        let mut names = if is_method {
            vec![b"self".to_vec()]
        } else {
            Vec::new()
        };
        while !self.is_sign(")") {
            if self.accept_sign("...")? {
                self.state().code.is_vararg = true;
                break;
            }
            if !matches!(self.token, Token::Name(_)) {
                return Err(self.error_near("<name> or '...' expected"));
            }
            names.push(self.name()?);
            if !self.accept_sign(",")? {
                break;
            }
            if self.is_sign(")") {
                return Err(self.error_near("<name> or '...' expected"));
            }
        }
        self.activate(&names)?;
        self.state().code.parameters = Self::register(names.len());
        self.reserve(names.len())?;
        self.expect_sign(")")?;
        self.statements()?;
        self.expect_match(
            &Token::Keyword(crate::lexer::Keyword::End),
            "function",
            line,
        )?;
        let function = self.end_function()?;
        let number = self.state().code.functions.len();
        self.state().code.functions.push(function);
        let Ok(number) = u16::try_from(number) else {
            return Err(self.error_near("too many functions"));
        };
        let at = self.emit(Op::Closure {
            to: 0,
            function: number,
        });
        let mut closure = Location::Pending(at).into();
        self.put_in_next_register(&mut closure)?;
        Ok(closure)
    }
}

/// Notes that a closure shares a variable of a function: the block that it belongs to closes it.
fn share(state: &mut FunctionState, register: usize) {
    let block = state
        .blocks
        .iter_mut()
        .rfind(|block| block.locals <= register);
    block
        .expect("the outermost block has all variables")
        .is_shared = true;
}
