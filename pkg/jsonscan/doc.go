// Package jsonscan reads a few members of large JSON objects and passes over the rest, once, from the front. It reads plain texts alone: what else there
// may be, such as an escape in a wanted string, makes a [Reader] unable, and the caller decodes the text with a library.
package jsonscan
