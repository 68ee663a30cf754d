// The words of the console. Terms of ZFS are the same in every language.

import { de } from './words/de';
import { en } from './words/en';

/** What has a word in every language. */
export type Word = keyof typeof en;

const chosen = localStorage.getItem('language') ?? navigator.language.slice(0, 2);
export const i18n = $state({ language: chosen === 'de' ? 'de' : 'en' });

/** The word for a key in the chosen language. */
export const t = (key: Word): string => (i18n.language === 'de' ? de : en)[key];

export function switchLanguage(): void {
  i18n.language = i18n.language === 'de' ? 'en' : 'de';
  localStorage.setItem('language', i18n.language);
}
