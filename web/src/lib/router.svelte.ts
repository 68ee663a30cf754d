// Which page is shown: the path of the address, one name for each segment. Links are plain links. What a page shows of itself (a filter, a
// span of time) is in the query, so that it can be linked to as well.

function segments(): string[] {
  return location.pathname.split('/').filter(Boolean).map(decodeURIComponent);
}

export const route = $state({ path: segments() });

export function go(path: string): void {
  history.pushState(null, '', path);
  route.path = segments();
  window.scrollTo(0, 0);
}

addEventListener('popstate', () => (route.path = segments()));
addEventListener('click', (event) => {
  const link = event.target instanceof Element ? event.target.closest('a') : null;
  const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.defaultPrevented;
  if (!link || !plain || link.origin !== location.origin || link.hash || link.target || link.hasAttribute('download')) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
