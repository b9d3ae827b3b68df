package schemas

// Isolate is what a renderer does first, for a test to do to itself.
var Isolate = isolate
