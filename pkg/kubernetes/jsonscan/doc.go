// Package jsonscan reads a few members of large JSON objects in one pass and skips the others. It reads plain input only: other input, such as an
// escape in the name of a member, makes a [Reader] unable, and the caller decodes the text with a library.
package jsonscan
