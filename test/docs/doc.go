// Package docs holds the project's pages to what they say: links lead
// somewhere, what a reader is told to write is what the schema and the engine
// take, what the code names is what the pages name, and each command that a message
// recommends is run by a test.
//
// It owns no page and has nothing but tests. It loads nothing into the kernel.
package docs
