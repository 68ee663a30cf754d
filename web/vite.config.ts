import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// The names of the files stay the same from build to build: the program embeds them by name, and tells browsers by ETag what is new.
export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: {
      output: {
        entryFileNames: 'app.js',
        assetFileNames: 'app[extname]',
        codeSplitting: false,
      },
    },
  },
  server: {
    proxy: { '/api': { target: process.env.SANBOX_URL ?? 'https://localhost:8443', secure: false } },
  },
});
