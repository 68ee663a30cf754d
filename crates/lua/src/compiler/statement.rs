//! Statements.

use crate::code::{ALL, Op};
use crate::lexer::{Keyword, Lexed, Token};

use super::Compiler;
use super::emit::{Expression, Location, small};

impl Compiler<'_> {
    /// Whether a keyword ends a list of statements.
    pub(super) fn ends_block(keyword: Keyword, with_until: bool) -> bool {
        match keyword {
            Keyword::Else | Keyword::Elseif | Keyword::End => true,
            Keyword::Until => with_until,
            _ => false,
        }
    }

    pub(super) fn statements(&mut self) -> Lexed<()> {
        loop {
            match &self.token {
                Token::End => return Ok(()),
                Token::Keyword(keyword) if Self::ends_block(*keyword, true) => return Ok(()),
                Token::Keyword(Keyword::Return) => return self.statement(),
                _ => self.statement()?,
            }
        }
    }

    pub(super) fn statement(&mut self) -> Lexed<()> {
        let line = self.token_line;
        self.enter_level()?;
        match self.token.clone() {
            Token::Sign(";") => self.advance()?,
            Token::Sign("::") => {
                self.advance()?;
                self.label_statement()?;
            }
            Token::Keyword(keyword) => self.keyword_statement(keyword, line)?,
            _ => self.expression_statement()?,
        }
        // Intermediate results are not needed any more.
        let state = self.state();
        assert!(
            state.free >= state.active.len(),
            "local variables keep their registers"
        );
        state.free = state.active.len();
        self.leave_level();
        Ok(())
    }

    fn keyword_statement(&mut self, keyword: Keyword, line: u32) -> Lexed<()> {
        match keyword {
            Keyword::If
            | Keyword::While
            | Keyword::Do
            | Keyword::For
            | Keyword::Repeat
            | Keyword::Function
            | Keyword::Local
            | Keyword::Return
            | Keyword::Break
            | Keyword::Goto => self.advance()?,
            _ => return self.expression_statement(),
        }
        match keyword {
            Keyword::If => self.if_statement(line),
            Keyword::While => self.while_statement(line),
            Keyword::Do => {
                self.block()?;
                self.expect_match(&Token::Keyword(Keyword::End), "do", line)
            }
            Keyword::For => self.for_statement(line),
            Keyword::Repeat => self.repeat_statement(line),
            Keyword::Function => self.function_statement(line),
            Keyword::Local if self.is_keyword(Keyword::Function) => self.local_function(),
            Keyword::Local => self.local_statement(),
            Keyword::Return => self.return_statement(),
            Keyword::Break => {
                self.break_statement();
                Ok(())
            }
            _ => self.goto_statement(),
        }
    }

    fn block(&mut self) -> Lexed<()> {
        self.open_block(false);
        self.statements()?;
        self.close_block()
    }

    /// A condition; returns the jumps that are made when it does not hold.
    fn condition(&mut self) -> Lexed<Vec<usize>> {
        let mut condition = self.expression()?;
        if condition.location == Location::Nil {
            condition.location = Location::Bool(false);
        }
        self.go_if_true(&mut condition)?;
        Ok(condition.when_false)
    }

    fn if_statement(&mut self, line: u32) -> Lexed<()> {
        let mut ends = Vec::new();
        loop {
            let otherwise = self.condition()?;
            self.expect_keyword(Keyword::Then)?;
            self.block()?;
            let goes_on = self.is_keyword(Keyword::Else) || self.is_keyword(Keyword::Elseif);
            if goes_on {
                ends.push(self.jump());
            }
            self.patch_all_here(&otherwise);
            if !self.accept_keyword(Keyword::Elseif)? {
                break;
            }
        }
        if self.accept_keyword(Keyword::Else)? {
            self.block()?;
        }
        self.expect_match(&Token::Keyword(Keyword::End), "if", line)?;
        self.patch_all_here(&ends);
        Ok(())
    }

    fn while_statement(&mut self, line: u32) -> Lexed<()> {
        let start = self.here();
        let exits = self.condition()?;
        self.open_block(true);
        self.expect_keyword(Keyword::Do)?;
        self.block()?;
        let back = self.jump();
        self.patch(back, start);
        self.expect_match(&Token::Keyword(Keyword::End), "while", line)?;
        self.close_block()?;
        self.patch_all_here(&exits);
        Ok(())
    }

    fn repeat_statement(&mut self, line: u32) -> Lexed<()> {
        let start = self.here();
        self.open_block(true);
        self.open_block(false);
        self.statements()?;
        self.expect_match(&Token::Keyword(Keyword::Until), "repeat", line)?;
        // The condition sees the variables of the block.
        let again = self.condition()?;
        if let Some(locals) = self.block_shares() {
            for &jump in &again {
                self.patch_close(jump, locals);
            }
        }
        self.close_block()?;
        self.patch_all(&again, start);
        self.close_block()
    }

    fn for_statement(&mut self, line: u32) -> Lexed<()> {
        self.open_block(true);
        let first = self.name()?;
        match &self.token {
            Token::Sign("=") => self.numeric_for(first, line)?,
            Token::Sign(",") | Token::Keyword(Keyword::In) => self.generic_for(first, line)?,
            _ => return Err(self.error_near("'=' or 'in' expected")),
        }
        self.expect_match(&Token::Keyword(Keyword::End), "for", line)?;
        self.close_block()
    }

    fn numeric_for(&mut self, name: Vec<u8>, line: u32) -> Lexed<()> {
        let base = Self::register(self.state().free);
        self.advance()?;
        let mut start = self.expression()?;
        self.put_in_next_register(&mut start)?;
        self.expect_sign(",")?;
        let mut limit = self.expression()?;
        self.put_in_next_register(&mut limit)?;
        let mut step = if self.accept_sign(",")? {
            self.expression()?
        } else {
            Location::Int(1).into()
        };
        self.put_in_next_register(&mut step)?;
        self.activate(
            &["(for index)", "(for limit)", "(for step)"].map(|name| name.as_bytes().to_vec()),
        )?;
        self.expect_keyword(Keyword::Do)?;
        let prepare = self.emit(Op::NumericPrepare { base, target: 0 });
        self.loop_body(&[name])?;
        self.patch_here(prepare);
        let target = u32::try_from(prepare + 1).expect("programs are short");
        self.emit(Op::NumericLoop { base, target });
        self.set_line(line);
        Ok(())
    }

    fn generic_for(&mut self, first: Vec<u8>, line: u32) -> Lexed<()> {
        let base = Self::register(self.state().free);
        let mut names = vec![first];
        while self.accept_sign(",")? {
            names.push(self.name()?);
        }
        self.expect_keyword(Keyword::In)?;
        let line_of_call = self.token_line;
        let (count, last) = self.expression_list()?;
        self.adjust(3, count, last)?;
        self.activate(
            &["(for generator)", "(for state)", "(for control)"]
                .map(|name| name.as_bytes().to_vec()),
        )?;
        // Room to call the generator.
        self.reserve(3)?;
        self.state().free -= 3;
        self.expect_keyword(Keyword::Do)?;
        let prepare = self.jump();
        self.loop_body(&names)?;
        self.patch_here(prepare);
        let results = Self::register(names.len());
        self.emit(Op::GenericCall { base, results });
        self.set_line(line_of_call);
        let target = u32::try_from(prepare + 1).expect("programs are short");
        self.emit(Op::GenericLoop {
            base: base + 2,
            target,
        });
        self.set_line(line);
        Ok(())
    }

    fn loop_body(&mut self, names: &[Vec<u8>]) -> Lexed<()> {
        self.open_block(false);
        self.activate(names)?;
        self.reserve(names.len())?;
        self.statements()?;
        self.close_block()
    }

    fn function_statement(&mut self, line: u32) -> Lexed<()> {
        let name = self.name()?;
        let mut variable = self.variable(&name)?;
        let mut is_method = false;
        while self.is_sign(".") || self.is_sign(":") {
            is_method = self.is_sign(":");
            self.advance()?;
            variable = self.field_of(variable)?;
            if is_method {
                break;
            }
        }
        let mut function = self.body(is_method, line)?;
        self.store(&variable.location, &mut function)?;
        self.set_line(line);
        Ok(())
    }

    fn local_function(&mut self) -> Lexed<()> {
        self.advance()?;
        let line = self.last_line;
        let name = self.name()?;
        self.activate(&[name])?;
        let register = Self::register(self.state().active.len() - 1);
        let mut function = self.body(false, line)?;
        assert_eq!(
            function.location,
            Location::Register(register),
            "the variable is the next register"
        );
        self.free(&function);
        function.location = Location::Nothing;
        Ok(())
    }

    fn local_statement(&mut self) -> Lexed<()> {
        let mut names = vec![self.name()?];
        while self.accept_sign(",")? {
            names.push(self.name()?);
        }
        if self.accept_sign("=")? {
            let (count, last) = self.expression_list()?;
            self.adjust(names.len(), count, last)?;
        } else {
            self.adjust(names.len(), 0, Location::Nothing.into())?;
        }
        self.activate(&names)
    }

    /// Makes `wanted` values in registers of `count` expressions, of which the last is not in one yet.
    fn adjust(&mut self, wanted: usize, count: usize, last: Expression) -> Lexed<()> {
        let mut last = last;
        if last.has_many_values() {
            let missing = (wanted + 1).saturating_sub(count);
            self.set_results(&last, small(missing))?;
            if missing > 1 {
                self.reserve(missing - 1)?;
            }
        } else {
            if last.location != Location::Nothing {
                self.put_in_next_register(&mut last)?;
            }
            if wanted > count {
                let to = Self::register(self.state().free);
                self.reserve(wanted - count)?;
                self.emit(Op::Nil {
                    to,
                    count: Self::register(wanted - count),
                });
            }
        }
        if count > wanted {
            self.state().free -= count - wanted;
        }
        Ok(())
    }

    fn return_statement(&mut self) -> Lexed<()> {
        let ends = match &self.token {
            Token::End | Token::Sign(";") => true,
            Token::Keyword(keyword) => Self::ends_block(*keyword, true),
            _ => false,
        };
        let locals = self.state().active.len();
        let (first, count) = if ends {
            (0, 0)
        } else {
            let (count, mut last) = self.expression_list()?;
            if last.has_many_values() {
                self.set_results(&last, -1)?;
                if let Location::Call(at) = last.location
                    && count == 1
                    && let Op::Call {
                        function,
                        arguments,
                        ..
                    } = self.state().code.code[at]
                {
                    self.state().code.code[at] = Op::TailCall {
                        function,
                        arguments,
                    };
                }
                (
                    Self::register(locals),
                    i16::try_from(ALL).expect("it is small"),
                )
            } else if count == 1 {
                (self.put_in_any_register(&mut last)?, 1)
            } else {
                self.put_in_next_register(&mut last)?;
                (Self::register(locals), small(count))
            }
        };
        self.emit(Op::Return { first, count });
        self.accept_sign(";")?;
        Ok(())
    }

    /// A call, or an assignment.
    fn expression_statement(&mut self) -> Lexed<()> {
        let first = self.suffixed()?;
        if self.is_sign("=") || self.is_sign(",") {
            return self.assignment(first);
        }
        match first.location {
            Location::Call(_) => self.set_results(&first, 0),
            _ => Err(self.error_near("syntax error")),
        }
    }

    fn assignment(&mut self, first: Expression) -> Lexed<()> {
        let mut targets = vec![first.location];
        self.check_target(&targets[0])?;
        while self.accept_sign(",")? {
            let next = self.suffixed()?;
            self.check_target(&next.location)?;
            self.keep_used(&mut targets, &next.location)?;
            targets.push(next.location);
            self.check_limit(targets.len() + self.depth as usize, 200, "C levels")?;
        }
        self.expect_sign("=")?;
        let (count, mut last) = self.expression_list()?;
        let mut targets = targets.into_iter().rev();
        if count == targets.len() {
            // The last value need not be copied.
            if last.has_many_values() {
                self.discharge(&mut last);
            }
            let target = targets.next().expect("there is one");
            self.store(&target, &mut last)?;
        } else {
            self.adjust(targets.len(), count, last)?;
        }
        for target in targets {
            let register = Self::register(self.state().free - 1);
            self.store(&target, &mut Location::Register(register).into())?;
        }
        Ok(())
    }

    fn check_target(&self, target: &Location) -> Lexed<()> {
        match target {
            Location::Local(_)
            | Location::Upvalue(_)
            | Location::Indexed { .. }
            | Location::UpvalueIndexed { .. } => Ok(()),
            _ => Err(self.error_near("syntax error")),
        }
    }

    /// A variable is about to be assigned to that earlier targets use as a table or key: they use a copy.
    fn keep_used(&mut self, targets: &mut [Location], assigned: &Location) -> Lexed<()> {
        let copy = Self::register(self.state().free);
        let mut used = false;
        for target in targets {
            match (assigned, target) {
                (Location::Local(local), Location::Indexed { table, key }) => {
                    if table == local {
                        *table = copy;
                        used = true;
                    }
                    if *key == u16::from(*local) {
                        *key = u16::from(copy);
                        used = true;
                    }
                }
                (Location::Local(local), Location::UpvalueIndexed { key, .. })
                    if *key == u16::from(*local) =>
                {
                    *key = u16::from(copy);
                    used = true;
                }
                (Location::Upvalue(assigned), target) => {
                    if let Location::UpvalueIndexed { upvalue, key } = *target
                        && upvalue == *assigned
                    {
                        *target = Location::Indexed { table: copy, key };
                        used = true;
                    }
                }
                _ => {}
            }
        }
        if used {
            match *assigned {
                Location::Local(from) => self.emit(Op::Move { to: copy, from }),
                Location::Upvalue(upvalue) => self.emit(Op::GetUpvalue { to: copy, upvalue }),
                _ => unreachable!("only variables are used"),
            };
            self.reserve(1)?;
        }
        Ok(())
    }
}
