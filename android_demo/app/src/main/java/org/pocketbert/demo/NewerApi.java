package org.pocketbert.demo;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** Marks a method that calls what Android got after API 24, behind a check of the API level; the API check leaves it out. */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
@interface NewerApi {}
